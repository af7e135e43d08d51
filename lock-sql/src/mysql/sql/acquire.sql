-- :name :holder :mode :room :ahead (how many have to leave before it holds) :queue :lease :waiter_lease (lock-delay included,
-- microseconds) :note :busy (busy.sql for who does not queue, otherwise NULL: the server plans it even where it is not needed)
-- One row: the number of the entry (NULL: none was made), microseconds to the earliest lease end ahead (for the first
-- waiter and for who was not let in), for whom this is: the holder where it holds, a zero and the holder where not, :ahead,
-- and who is right ahead.
START TRANSACTION;
INSERT INTO `onelock_name` (name, number) VALUES (:name, 0) ON DUPLICATE KEY UPDATE number = number;
SET @now := TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), @entry := NULL, @mode := :mode, @room := :room;
DELETE FROM `onelock_line` WHERE name = :name AND ends <= @now;
SELECT number, mode, room INTO @entry, @mode, @room FROM `onelock_line` WHERE holder = :holder AND name = :name;
SELECT COUNT(*), MIN(mode), MAX(mode), MIN(room), MIN(ends), :ahead, MAX(number + 0)
INTO @ahead, @low, @high, @space, @earliest, @leave, @before
FROM `onelock_line` WHERE name = :name AND number < COALESCE(@entry, 9223372036854775807);
SET @holds := (@ahead = 0 OR (@low = @high AND @low = @mode AND @ahead < @room));
SET @joins := (@entry IS NULL AND (:queue OR @holds));
-- A name that was retired starts above the floor. The floor is read after the name is locked: whoever retired the name
-- had raised it before.
SET @next := IF(@joins, (
    SELECT IF(n.number > 0, n.number, f.number) + 1
    FROM `onelock_name` n JOIN `onelock_floor` f ON f.id = 1 WHERE n.name = :name
), NULL);
UPDATE `onelock_name` SET number = @next WHERE name = :name AND @joins;
INSERT INTO `onelock_line` (name, number, holder, mode, room, ends, joined, note)
SELECT :name, COALESCE(@entry, @next), :holder, @mode, @room, @now + IF(@holds, :lease, :waiter_lease), @now, :note
FROM DUAL WHERE @joins OR @entry IS NOT NULL
ON DUPLICATE KEY UPDATE ends = GREATEST(`onelock_line`.ends, @now + IF(@holds, :lease, :waiter_lease));
SELECT CAST(COALESCE(@entry, @next) AS SIGNED), CAST(CASE
    WHEN @low = @high AND @ahead <= @space THEN @earliest - @now
    WHEN @joins OR @entry IS NOT NULL THEN NULL
    ELSE :busy
END AS SIGNED), IF(@holds, :holder, CONCAT(X'00', :holder)), CAST(@leave AS SIGNED), CAST(@before AS SIGNED);
COMMIT;
