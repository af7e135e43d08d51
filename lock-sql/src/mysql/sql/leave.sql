-- :name :number :holder. What release.sql does, where nobody here waits and the entry is there: the rows that go are counted. It
-- locks no name: an entry that leaves takes nothing from anybody. What has expired is left to who acts on it.
DELETE FROM `onelock_line` WHERE name = :name AND number = :number AND holder = :holder
AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
