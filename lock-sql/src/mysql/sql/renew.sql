-- :names (in any order; they are locked in their own) :due, rows of (item, name, holder, lease, waiter_lease)
-- A row for each entry that is there: the item, the number, whether it holds, and for the first waiter microseconds to
-- the earliest lease end ahead.
START TRANSACTION;
SELECT COUNT(number) INTO @names FROM `onelock_name` FORCE INDEX (PRIMARY) WHERE name IN (:names) FOR UPDATE;
SET @now := TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
DELETE FROM `onelock_line` WHERE name IN (:names) AND ends <= @now;
UPDATE (:due) d
STRAIGHT_JOIN `onelock_line` l ON l.holder = d.holder AND l.name = d.name
STRAIGHT_JOIN (
    SELECT name, number, MIN(mode) OVER w = MAX(mode) OVER w AND ROW_NUMBER() OVER w <= room AS held
    FROM `onelock_line` WHERE name IN (:names) WINDOW w AS (PARTITION BY name ORDER BY number)
) s ON s.name = l.name AND s.number = l.number
SET l.ends = GREATEST(l.ends, @now + IF(s.held, d.lease, d.waiter_lease));
SELECT CAST(d.item AS SIGNED), l.number, CAST(s.held AS SIGNED), CAST(IF(s.next, s.earliest - @now, NULL) AS SIGNED)
FROM (:due) d
STRAIGHT_JOIN `onelock_line` l ON l.holder = d.holder AND l.name = d.name
STRAIGHT_JOIN (
    SELECT name, number, MIN(mode) OVER w = MAX(mode) OVER w AND ROW_NUMBER() OVER w <= room AS held,
        MIN(mode) OVER a = MAX(mode) OVER a AND COUNT(*) OVER a <= MIN(room) OVER a AS next,
        MIN(ends) OVER a AS earliest
    FROM `onelock_line` WHERE name IN (:names)
    WINDOW w AS (PARTITION BY name ORDER BY number),
        a AS (PARTITION BY name ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) s ON s.name = l.name AND s.number = l.number;
COMMIT;
