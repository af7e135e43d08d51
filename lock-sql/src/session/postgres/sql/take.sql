-- $1 the key, $2 what the session's name ends with, $3 its time of idleness, $4 the token epoch. One row: the session, the name that
-- says what it holds (NULL: busy), and the number drawn; the last one if it is busy.
-- The number is drawn by who holds the lock, and shown no sooner: a CASE looks at its branches in order, and what is volatile in FROM
-- comes first. A number of another epoch is given to nobody, nor is the lock.
SELECT pg_backend_pid(), CASE WHEN $3::text IS NOT NULL THEN set_config('idle_session_timeout', $3, false) END,
    CASE n >> 48 = $4::integer
        WHEN true THEN set_config('application_name', 'onelock ' || n::text || $2, false)
        WHEN false THEN {unlock}($1)::text
    END,
    coalesce(n, pg_sequence_last_value('{schema}.number'::regclass))
FROM (SELECT CASE WHEN {taken} THEN nextval('{schema}.number'::regclass) END AS n OFFSET 0) AS drawn
