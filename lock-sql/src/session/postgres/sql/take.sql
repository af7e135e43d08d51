-- $1 the key, $2 what the session's name ends with, $3 its time of idleness, $4 the token epoch, $5 whether to share (1) and whether to
-- wait (2). One row: the session, the number drawn, or the last one if it is busy, and the name that says what it holds (NULL: busy).
-- The number is drawn by who holds the lock, and shown no sooner: a CASE looks at its branches in order, and what is volatile in FROM
-- comes first. A number of another epoch is given to nobody, nor is the lock.
SELECT pg_backend_pid()::bigint, coalesce(n, pg_sequence_last_value('{schema}.number'::regclass)),
    CASE n >> 48 = $4::integer
        WHEN true THEN set_config('application_name', 'onelock ' || n::text || $2, false)
        WHEN false THEN CASE $5 & 1 WHEN 0 THEN pg_advisory_unlock($1) ELSE pg_advisory_unlock_shared($1) END::text
    END,
    CASE WHEN $3::text IS NOT NULL THEN set_config('idle_session_timeout', $3, false) END
FROM (
    SELECT CASE WHEN CASE $5::integer
        WHEN 0 THEN pg_try_advisory_lock($1)
        WHEN 1 THEN pg_try_advisory_lock_shared($1)
        WHEN 2 THEN pg_advisory_lock($1) IS NOT NULL
        ELSE pg_advisory_lock_shared($1) IS NOT NULL
    END THEN nextval('{schema}.number'::regclass) END AS n
    OFFSET 0
) AS drawn
