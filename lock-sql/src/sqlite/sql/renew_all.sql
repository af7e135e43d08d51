-- ?1 a JSON array of [token, ends]. A lease is never made shorter.
UPDATE onelock_line SET ends = u.ends
FROM (SELECT value ->> 0 AS token, max(value ->> 1) AS ends FROM json_each(?1) GROUP BY value ->> 0) AS u
WHERE onelock_line.token = u.token AND onelock_line.ends < u.ends;
