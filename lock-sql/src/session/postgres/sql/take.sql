SELECT pg_backend_pid() + $4::bigint,
    CASE WHEN $3::text IS NOT NULL THEN set_config('idle_session_timeout', $3, false) END,
    CASE WHEN {taken} THEN
        set_config('application_name', 'onelock ' || nextval('{schema}.number'::regclass)::text || $2, false) END
