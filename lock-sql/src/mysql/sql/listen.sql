-- :own :before (bells) :behind (the number :before belongs to) :pause :limit :again (microseconds) :looks :name :number :holder :ahead.
-- What look_one.sql does, after :pause and when the bell of who is right ahead was rung, or after :limit. Where nobody holds that bell, or others wait
-- for each other's, it looks on as look_on.sql does. Two columns more: who is right ahead now, and whether the bell was held all the time. A
-- block of MariaDB.
BEGIN NOT ATOMIC
BEGIN
DECLARE CONTINUE HANDLER FOR SQLEXCEPTION SET @silence = 0;
DO IF(IS_USED_LOCK(:own) = CONNECTION_ID(), 0, GET_LOCK(:own, 0)), SLEEP(:pause * 1e-6);
SET @silence = CASE GET_LOCK(:before, :limit * 1e-6) WHEN 1 THEN RELEASE_LOCK(:before) * 0 WHEN 0 THEN 1 ELSE 0 END;
END;
SET @looks = :looks;
REPEAT
SELECT MAX(IF(number = :number AND holder = :holder, number, NULL)), :ahead, MAX(IF(number < :number, number, NULL)), @looks - 1
INTO @entry, @ahead, @last, @looks
FROM `onelock_line` FORCE INDEX (PRIMARY) WHERE name = :name AND number <= :number
AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
UNTIL @silence OR @looks <= 0 OR @entry IS NULL OR @ahead <> 1 OR @last <> :behind OR SLEEP(:again * 1e-6) END REPEAT;
SELECT CAST(@entry AS SIGNED), IF(@ahead = 0, :holder, CONCAT(X'00', :holder)), CAST(@ahead AS SIGNED), CAST(@last AS SIGNED),
CAST(@silence AS SIGNED);
END
