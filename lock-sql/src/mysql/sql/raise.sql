-- :name :holder :number. One row: whether the entry is there, and the counter, which only a join takes to a later epoch.
START TRANSACTION;
SELECT MAX(number) INTO @last FROM `onelock_counter` WHERE bucket = CRC32(:name) % 1024 FOR UPDATE;
SELECT COUNT(*) INTO @ours FROM `onelock_line` WHERE holder = :holder AND name = :name
AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
UPDATE `onelock_counter` SET number = GREATEST(number, :number)
WHERE bucket = CRC32(:name) % 1024 AND @ours AND :number >> 48 <= @last >> 48;
SELECT CAST(@ours AS SIGNED) AS ours, CAST(@last AS SIGNED) AS last;
COMMIT;
