-- :looks :pause :again (microseconds) :name :number :holder :ahead. What look_one.sql does, and after :again once more, so many times at
-- most, while the turn of the entry is next: who waits for it here is told at once. A block of MariaDB, where each statement costs;
-- SLEEP() is 0.
BEGIN NOT ATOMIC
SET @looks = :looks;
DO SLEEP(:pause * 1e-6);
REPEAT
SELECT MAX(IF(number = :number AND holder = :holder, number, NULL)), :ahead, @looks - 1 INTO @entry, @ahead, @looks
FROM `onelock_line` FORCE INDEX (PRIMARY) WHERE name = :name AND number <= :number
AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
UNTIL @looks <= 0 OR @entry IS NULL OR @ahead <> 1 OR SLEEP(:again * 1e-6) END REPEAT;
SELECT CAST(@entry AS SIGNED), IF(@ahead = 0, :holder, CONCAT(X'00', :holder)), CAST(@ahead AS SIGNED);
END
