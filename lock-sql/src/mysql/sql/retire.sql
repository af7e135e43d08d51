-- :names. Drops what has expired in these lines, and the rows of those that are empty then, after the floor has been
-- raised above their numbers. A number so large that the floor would soon have none left keeps its row.
START TRANSACTION;
SELECT COUNT(number) INTO @names FROM `onelock_name` FORCE INDEX (PRIMARY) WHERE name IN (:names) FOR UPDATE;
SET @now := TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), @number := NULL;
DELETE FROM `onelock_line` WHERE name IN (:names) AND ends <= @now;
SELECT MAX(n.number) INTO @number FROM `onelock_name` n LEFT JOIN `onelock_line` l ON l.name = n.name
WHERE n.name IN (:names) AND l.name IS NULL AND n.number < 4611686018427387904;
UPDATE `onelock_floor` SET number = GREATEST(number, @number) WHERE id = 1 AND @number IS NOT NULL;
DELETE n FROM `onelock_name` n LEFT JOIN `onelock_line` l ON l.name = n.name
WHERE n.name IN (:names) AND l.name IS NULL AND n.number <= @number;
COMMIT;
