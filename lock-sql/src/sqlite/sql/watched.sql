-- ?1 tokens as a JSON array, ?2 now. The watched tokens that hold or are gone; the last row is the schema version.
SELECT j.value, e.token IS NOT NULL
FROM json_each(?1) AS j
LEFT JOIN onelock_line AS e ON e.token = j.value AND e.ends > ?2
WHERE e.token IS NULL OR e.held = 1;
-- Last: versions only grow, so what was read before was of this one.
PRAGMA user_version;
