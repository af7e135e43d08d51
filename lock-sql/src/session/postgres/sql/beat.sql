-- $1 the session's time of idleness; NULL leaves it.
SELECT pg_backend_pid(), true, CASE WHEN $1::text IS NOT NULL THEN set_config('idle_session_timeout', $1, false) END
