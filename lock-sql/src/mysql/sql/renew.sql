-- :names :buckets (theirs) :due, rows of (item, name, holder, lease, waiter_lease)
-- A row for each entry that is there: the item, the number, for the first waiter microseconds to the earliest lease
-- end ahead, and for whom this is, as acquire.sql says it. The derived table gives the first number of each name that does not
-- hold: of another kind than the front, or where more is taken than a limit that has come up to there (a join with the few limits
-- there are, because MariaDB computes a running MIN anew for each row). A release locks no counter and may come between the two:
-- who holds is who also has a holder's lease. An update takes one lease for each entry: of one that comes twice, the longest.
START TRANSACTION;
SELECT COUNT(number) INTO @last FROM `onelock_counter` FORCE INDEX (PRIMARY) WHERE bucket IN (:buckets) FOR UPDATE;
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), MIN(ends) INTO @now, @earliest
FROM `onelock_line` FORCE INDEX (PRIMARY) WHERE name IN (:names);
DELETE FROM `onelock_line` WHERE name IN (:names) AND @earliest <= @now AND ends <= @now;
UPDATE (
    SELECT name, holder, MAX(lease) AS lease, MAX(waiter_lease) AS waiter_lease FROM (:due) a GROUP BY name, holder
) d
STRAIGHT_JOIN `onelock_line` l ON l.holder = d.holder AND l.name = d.name
STRAIGHT_JOIN (
    SELECT t.name, COALESCE(MIN(IF(t.kind <> t.front OR t.taken > r.room, t.number, NULL)), 9223372036854775807) AS next FROM (
        SELECT name, number, LEFT(mode, 1) AS kind, FIRST_VALUE(LEFT(mode, 1)) OVER w AS front, SUM(weight) OVER w AS taken
        FROM `onelock_line` WHERE name IN (:names) WINDOW w AS (PARTITION BY name ORDER BY number ROWS UNBOUNDED PRECEDING)
    ) t JOIN (
        SELECT name, room, MIN(number) AS first FROM `onelock_line` WHERE name IN (:names) GROUP BY name, room
    ) r ON r.name = t.name AND r.first <= t.number GROUP BY t.name
) s ON s.name = l.name
SET l.ends = GREATEST(l.ends, @now + IF(l.number < s.next, d.lease, d.waiter_lease))
WHERE l.ends > @now;
SELECT CAST(d.item AS SIGNED) AS item, l.number, CAST(IF(l.number = s.next, (
    SELECT MIN(a.ends) FROM `onelock_line` a WHERE a.name = l.name AND a.number < l.number
) - @now, NULL) AS SIGNED) AS retry_after, IF(l.number < s.next AND l.ends >= @now + d.lease, d.holder, CONCAT(X'00', d.holder)) AS whose
FROM (:due) d
STRAIGHT_JOIN `onelock_line` l ON l.holder = d.holder AND l.name = d.name
STRAIGHT_JOIN (
    SELECT t.name, COALESCE(MIN(IF(t.kind <> t.front OR t.taken > r.room, t.number, NULL)), 9223372036854775807) AS next FROM (
        SELECT name, number, LEFT(mode, 1) AS kind, FIRST_VALUE(LEFT(mode, 1)) OVER w AS front, SUM(weight) OVER w AS taken
        FROM `onelock_line` WHERE name IN (:names) WINDOW w AS (PARTITION BY name ORDER BY number ROWS UNBOUNDED PRECEDING)
    ) t JOIN (
        SELECT name, room, MIN(number) AS first FROM `onelock_line` WHERE name IN (:names) GROUP BY name, room
    ) r ON r.name = t.name AND r.first <= t.number GROUP BY t.name
) s ON s.name = l.name
WHERE l.ends > @now;
COMMIT;
