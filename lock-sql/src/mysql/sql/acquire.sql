-- :name :holder :mode :room :weight :queue :lease :waiter_lease (lock-delay included, microseconds) :note :epoch, and busy
-- (busy.sql for who does not queue, otherwise NULL: the server plans it even where it does not need it)
-- One row: the number of the entry (NULL: none was made), microseconds to the earliest lease end ahead (for the first
-- waiter and for who was not let in), for whom this is: the holder where it holds, a zero and the holder where not; and the
-- counter before it. Who is of an earlier epoch than the counter, or finds its last number given, does not join. The
-- conditions hold in a block and are comments elsewhere: on an empty line the statements inside them find nothing.
START TRANSACTION;
SELECT MAX(number) INTO @last FROM `onelock_counter` WHERE bucket = CRC32(:name) % 1024 FOR UPDATE;
SELECT COUNT(*), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), MIN(ends),
CASE WHEN MIN(slot) > 0 THEN 0 WHEN MAX(slot) < COUNT(*) THEN COUNT(*) END INTO @entries, @now, @earliest, @slot
FROM `onelock_line` WHERE name = :name;
/* IF @entries > 0 THEN */
DELETE FROM `onelock_line` WHERE name = :name AND @earliest <= @now AND ends <= @now;
-- Locked, because renewals, releases and sweeps of other clients do not lock the counter.
SELECT MAX(number), LEFT(COALESCE(MAX(mode), :mode), 1), CAST(COALESCE(MAX(room), :room) AS SIGNED),
CAST(COALESCE(MAX(weight), :weight) AS SIGNED) INTO @entry, @kind, @room, @weight
FROM `onelock_line` WHERE holder = :holder AND name = :name AND ends > @now FOR UPDATE;
-- How many have to leave before it holds, or how much of the smallest limit; the earliest lease end where all ahead hold; the lowest free slot,
-- which the first reading gives where that is the first or behind the last.
SELECT COUNT(IF(LEFT(mode, 1) = @kind, NULL, 1)) + GREATEST(0,
    CAST(COALESCE(SUM(IF(LEFT(mode, 1) = @kind, weight, 0)), 0) AS SIGNED) + @weight
    - LEAST(@room, CAST(COALESCE(MIN(IF(LEFT(mode, 1) = @kind, room, NULL)), @room) AS SIGNED))),
IF(MIN(LEFT(mode, 1)) = MAX(LEFT(mode, 1)) AND SUM(weight) <= MIN(room), MIN(ends), NULL),
COALESCE(@slot, (
    SELECT f.slot + 1 FROM `onelock_line` f FORCE INDEX (PRIMARY) WHERE f.name = :name AND NOT EXISTS (
        SELECT 1 FROM `onelock_line` n WHERE n.name = :name AND n.slot = f.slot + 1
    ) ORDER BY f.slot LIMIT 1
), 0)
INTO @ahead, @first, @slot
FROM `onelock_line` FORCE INDEX (PRIMARY) WHERE name = :name AND number < COALESCE(@entry, 9223372036854775807);
/* ELSE SET @entry = NULL, @ahead = 0, @first = NULL, @slot = 0; END IF; */
SET @joins := (@entry IS NULL AND (:queue OR @ahead = 0) AND @last >> 48 <= :epoch AND @last & 281474976710655 < 281474976710655),
    @next := (:epoch << 48 | (@last & 281474976710655)) + 1, @ends := @now + IF(@ahead = 0, :lease, :waiter_lease);
UPDATE `onelock_counter` SET number = @next WHERE bucket = CRC32(:name) % 1024 AND @joins;
INSERT INTO `onelock_line` (name, slot, number, holder, mode, room, weight, ends, joined, note)
SELECT :name, @slot, @next, :holder, :mode, :room, :weight, @ends, @now, :note FROM DUAL WHERE @joins;
/* IF @entries > 0 THEN */
UPDATE `onelock_line` SET ends = GREATEST(ends, @ends) WHERE holder = :holder AND name = :name AND @entry IS NOT NULL;
/* END IF; */
SELECT CAST(COALESCE(@entry, IF(@joins, @next, NULL)) AS SIGNED) AS number, CAST(CASE
    WHEN @first IS NOT NULL THEN @first - @now
    WHEN @joins OR @entry IS NOT NULL THEN NULL
    ELSE
{busy}
END AS SIGNED) AS retry_after, IF(@ahead = 0, :holder, CONCAT(X'00', :holder)) AS whose, CAST(@last AS SIGNED) AS last;
COMMIT;
