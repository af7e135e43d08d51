-- :looks :pause (microseconds) :name :number :holder :ahead. What look_one.sql does, so many times at most, until the entry holds
-- or is gone: who waits for it here is told at once. A block of MariaDB.
BEGIN NOT ATOMIC
DECLARE looks INT DEFAULT :looks;
REPEAT
DO SLEEP(:pause * 1e-6);
SELECT MAX(IF(number = :number AND holder = :holder, number, NULL)), :ahead INTO @entry, @ahead
FROM `onelock_line` FORCE INDEX (PRIMARY) WHERE name = :name AND number <= :number
AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
SET looks = looks - 1;
UNTIL looks <= 0 OR @entry IS NULL OR @ahead = 0 END REPEAT;
SELECT CAST(@entry AS SIGNED), IF(@ahead = 0, :holder, CONCAT(X'00', :holder)), CAST(@ahead AS SIGNED);
END
