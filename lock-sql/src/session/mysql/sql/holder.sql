-- :key. One row: the session that holds the lock (NULL: none of ours), the number that its further locks say (NULL: not all of it yet),
-- and whose it is: without the right to see sessions of other users the server shows the id alone.
-- They are looked at one after the other: what reads the same twice is one number, and not parts of two.
WITH RECURSIVE d AS (SELECT 0 AS v UNION ALL SELECT v + 1 FROM d WHERE v < 63), seen AS (
    SELECT CAST(MAX(holder) AS SIGNED) AS session, CAST(IF(SUM(place.v = 0) > 0, BIT_OR(64 * high.v + low.v << 12 * place.v), NULL) AS SIGNED) AS number
    FROM (SELECT IS_USED_LOCK(:key) AS holder LIMIT 1) AS held CROSS JOIN d AS high CROSS JOIN d AS low CROSS JOIN d AS place
    WHERE place.v < 6 AND IS_USED_LOCK(CONCAT('onelock/', COALESCE(holder, 0), '/', place.v, '/', 64 * high.v + low.v)) = holder
)
SELECT session, number, CAST(CONCAT('session ', session, COALESCE(CONCAT(' of ', USER, '@', HOST), '')) AS BINARY) AS whose
FROM seen LEFT JOIN information_schema.PROCESSLIST ON ID = session
