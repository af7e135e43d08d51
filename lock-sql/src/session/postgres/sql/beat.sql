-- $1 the session's time of idleness; NULL leaves it. One row: the session, and a number.
SELECT pg_backend_pid()::bigint, 1::bigint, CASE WHEN $1::text IS NOT NULL THEN set_config('idle_session_timeout', $1, false) END
