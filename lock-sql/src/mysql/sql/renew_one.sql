-- :name :holder :lease :waiter_lease (lock-delay included, microseconds)
-- One row: the number of the entry (NULL: there is none), for the first waiter microseconds to the earliest lease end
-- ahead, and for whom this is, as acquire.sql says it. What renew.sql does for many, without its temporary tables.
START TRANSACTION;
SELECT number INTO @number FROM `onelock_name` WHERE name = :name FOR UPDATE;
SET @now := TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), @entry := NULL, @mode := NULL, @room := NULL;
DELETE FROM `onelock_line` WHERE name = :name AND ends <= @now;
SELECT number, mode, room INTO @entry, @mode, @room FROM `onelock_line` WHERE holder = :holder AND name = :name;
SELECT COUNT(*), MIN(mode), MAX(mode), MIN(room), MIN(ends) INTO @ahead, @low, @high, @space, @earliest
FROM `onelock_line` WHERE name = :name AND number < @entry;
SET @holds := (@ahead = 0 OR (@low = @high AND @low = @mode AND @ahead < @room));
UPDATE `onelock_line` SET ends = GREATEST(ends, @now + IF(@holds, :lease, :waiter_lease))
WHERE name = :name AND number = @entry;
SELECT CAST(@entry AS SIGNED), CAST(IF(@low = @high AND @ahead <= @space, @earliest - @now, NULL) AS SIGNED),
    IF(@holds, :holder, CONCAT(X'00', :holder));
COMMIT;
