-- :holders (entries that wait, the foremost of their names in this client)
-- A row for each that is there: whose it is, its number, how many have to leave before it holds, or how much of the smallest limit (-1: a
-- lease ahead has ended, unless a renewal that is under way began before; who asks comes behind it, as both lock the counter).
-- The last row is nobody's, and says whether the server takes writes (as in primary.sql): on one that was demoted the line stands
-- still, a lease that is renewed elsewhere seems to end, and who has joined elsewhere seems to be gone. Locks nothing.
/* onelock polls */ SELECT l.holder, l.number, CAST((
    SELECT IF(MIN(a.ends) <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), -1,
        COUNT(IF(LEFT(a.mode, 1) = LEFT(l.mode, 1), NULL, 1)) + GREATEST(0,
        CAST(COALESCE(SUM(IF(LEFT(a.mode, 1) = LEFT(l.mode, 1), a.weight, 0)), 0) AS SIGNED) + CAST(l.weight AS SIGNED)
        - CAST(LEAST(l.room, COALESCE(MIN(IF(LEFT(a.mode, 1) = LEFT(l.mode, 1), a.room, NULL)), l.room)) AS SIGNED)))
    FROM `onelock_line` a FORCE INDEX (PRIMARY) WHERE a.name = l.name AND a.number < l.number
) AS SIGNED) AS ahead, 1 AS is_primary FROM `onelock_line` l FORCE INDEX (holder)
WHERE l.holder IN (:holders) AND l.ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
UNION ALL SELECT X'', 0, 0, CAST(@@GLOBAL.read_only AS CHAR) IN ('0', 'OFF');
