-- ?1 a JSON array of [name, holder in hexadecimal], ?2 now. For each element, in order: the token of its entry and
-- whether it holds, or NULLs. The last row is the schema version.
SELECT e.token, e.held FROM json_each(?1) AS j
LEFT JOIN onelock_line AS e
    ON e.name = j.value ->> 0 AND e.holder = unhex(j.value ->> 1) AND e.ends > ?2
ORDER BY j.key;
-- Last: versions only grow, so what was read before was of this one.
PRAGMA user_version;
