-- :name :number :holder :after (a look at the waiters of this client)
-- What leave.sql does. One row: whether the entry was there, what :after says.
START TRANSACTION;
SET @now := TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
DELETE FROM `onelock_line` WHERE name = :name AND number = :number AND holder = :holder AND ends > @now;
SELECT CAST(ROW_COUNT() AS SIGNED), :after;
COMMIT;
