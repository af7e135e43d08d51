-- $1 the key, $2 what the session's name ends with, $3 its time of idleness. One row: the session, and the name that says what it holds; NULL: busy.
-- The number is drawn by who holds the lock, and shown no sooner: a CASE looks at its branches in order.
SELECT pg_backend_pid(), CASE WHEN $3::text IS NOT NULL THEN set_config('idle_session_timeout', $3, false) END,
    CASE WHEN {taken} THEN
        set_config('application_name', 'onelock ' || nextval('{schema}.number'::regclass)::text || $2, false) END
