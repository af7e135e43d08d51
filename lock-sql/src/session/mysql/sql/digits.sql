-- :holder :top :sixteen (the numbers from 0 to 15). One row, what that session says of its number (NULL: nothing): the lowest 12 bits,
-- the others below the token epoch, where they are one of 4096 values from the top down, and the epoch.
SELECT CAST(MAX(IF(IS_USED_LOCK(CONCAT('onelock/:holder/0/', v)) = :holder, v, NULL)) AS SIGNED),
    CAST(MAX(IF(IS_USED_LOCK(CONCAT('onelock/:holder/1/', :top - v)) = :holder, :top - v, NULL)) AS SIGNED),
    CAST(MAX(IF(IS_USED_LOCK(CONCAT('onelock/:holder/2/', v)) = :holder, v, 0)) AS SIGNED)
    + 4096 * CAST(MAX(IF(v < 8 AND IS_USED_LOCK(CONCAT('onelock/:holder/3/', v)) = :holder, v, 0)) AS SIGNED)
FROM (
    SELECT a.x * 256 + b.x * 16 + c.x AS v
    FROM (:sixteen) a CROSS JOIN (:sixteen) b CROSS JOIN (:sixteen) c
) d;
