SELECT pg_backend_pid() + $2::bigint, NULL::text,
    CASE WHEN $1::text IS NULL OR set_config('idle_session_timeout', $1, false) IS NOT NULL THEN 'yes' END
