-- ?1 a JSON array of [name, holder in hexadecimal]. For each element, in order: the number of its entry where it holds
-- and nobody waits, so that nothing about its line can change but its lease; else NULL.
SELECT CASE WHEN o.held = 1 AND (o.mode IN ('x', 's') OR o.mode GLOB 'p[1-9]*') AND NOT EXISTS (
    SELECT 1 FROM onelock_line AS w WHERE w.name = o.name AND w.held = 0
) THEN o.token END
FROM json_each(?1) AS j
LEFT JOIN onelock_line AS o ON o.name = j.value ->> 0 AND o.holder = unhex(j.value ->> 1)
ORDER BY j.key;
