-- :name :holder. The rows that go are counted. An entry that leaves takes nothing from anybody, so no counter is locked; what
-- has expired is left to who joins or renews behind it, and to sweep.sql.
DELETE FROM `onelock_line` WHERE holder = :holder AND name = :name
AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
