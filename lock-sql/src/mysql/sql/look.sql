-- :pause (microseconds) :holders (entries that wait, the foremost of their lines in this client). After the pause, rows of a name, a number and zeros: those that
-- hold; and at the end one without a name: how many are there, a sum of the fronts of their lines, which tells
-- whether lines move, and how many have to leave before the one holds whose turn may be next.
-- Of the entries ahead one is enough that does not go with it; only permits are counted.
DO SLEEP(:pause * 1e-6);
SELECT l.name, l.number, 0, 0 FROM `onelock_line` l FORCE INDEX (holder)
WHERE l.holder IN (:holders) AND l.ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    AND NOT EXISTS (
        SELECT 1 FROM `onelock_line` a WHERE a.name = l.name AND a.number < l.number
            AND a.ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
            AND (l.mode = 'x' OR a.mode <> l.mode)
    ) AND (l.mode IN ('x', 's') OR l.room > (
        SELECT COUNT(*) FROM `onelock_line` a WHERE a.name = l.name AND a.number < l.number
            AND a.ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    ))
UNION ALL
SELECT '', COUNT(*), CAST(BIT_XOR((
    SELECT a.number FROM `onelock_line` a WHERE a.name = l.name ORDER BY a.number LIMIT 1
)) AS SIGNED), CAST(COALESCE(MIN((
    SELECT COUNT(IF(a.mode <> l.mode, 1, NULL)) + GREATEST(0, COUNT(IF(a.mode = l.mode, 1, NULL)) + 1 - CAST(l.room AS SIGNED))
    FROM `onelock_line` a WHERE a.name = l.name AND a.number < l.number
)), 0) AS SIGNED) FROM `onelock_line` l FORCE INDEX (holder)
WHERE l.holder IN (:holders) AND l.ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
