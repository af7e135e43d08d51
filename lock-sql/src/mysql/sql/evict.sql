-- :name :number :after (a look at the waiters of this client)
-- One row: whether the entry was there, whether the line has entries yet, what :after says.
START TRANSACTION;
SELECT number INTO @number FROM `onelock_name` WHERE name = :name FOR UPDATE;
SET @now := TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
DELETE FROM `onelock_line` WHERE name = :name AND ends <= @now;
DELETE FROM `onelock_line` WHERE name = :name AND number = :number;
SET @gone := ROW_COUNT();
SELECT CAST(@gone AS SIGNED), CAST(EXISTS (SELECT 1 FROM `onelock_line` WHERE name = :name) AS SIGNED), :after;
COMMIT;
