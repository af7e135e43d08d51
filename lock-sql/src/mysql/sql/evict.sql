-- :name :number. The rows that go are counted.
DELETE FROM `onelock_line` WHERE name = :name AND number = :number
AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
