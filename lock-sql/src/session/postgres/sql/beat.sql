SELECT pg_backend_pid(), NULL::text,
    CASE WHEN $1::text IS NOT NULL THEN set_config('idle_session_timeout', $1, false) ELSE 'yes' END
