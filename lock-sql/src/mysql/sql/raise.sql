-- :name :holder :number. One row: whether the entry is there.
START TRANSACTION;
SELECT number INTO @number FROM `onelock_name` WHERE name = :name FOR UPDATE;
SET @now := TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
DELETE FROM `onelock_line` WHERE name = :name AND ends <= @now;
SET @ours := EXISTS (SELECT 1 FROM `onelock_line` WHERE holder = :holder AND name = :name);
UPDATE `onelock_name` SET number = GREATEST(number, :number) WHERE name = :name AND @ours;
SELECT CAST(@ours AS SIGNED);
COMMIT;
