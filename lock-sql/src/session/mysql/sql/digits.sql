-- :own (the prefix of the holding session) :holder. One row: the session, and the four digits of the number it says it has (NULL: it
-- says nothing), each one of 4096.
SELECT CAST(CONNECTION_ID() AS SIGNED) + :asked, CAST(MAX(IF(IS_USED_LOCK(CONCAT(:own, '0/', v)) = :holder, v, NULL)) AS SIGNED),
    CAST(MAX(IF(IS_USED_LOCK(CONCAT(:own, '1/', v)) = :holder, v, NULL)) AS SIGNED),
    CAST(MAX(IF(IS_USED_LOCK(CONCAT(:own, '2/', v)) = :holder, v, NULL)) AS SIGNED),
    CAST(MAX(IF(IS_USED_LOCK(CONCAT(:own, '3/', v)) = :holder, v, NULL)) AS SIGNED)
FROM (
    SELECT a.x * 256 + b.x * 16 + c.x AS v
    FROM (:sixteen) a CROSS JOIN (:sixteen) b CROSS JOIN (:sixteen) c
) d;
