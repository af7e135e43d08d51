SELECT pg_backend_pid() + $4::bigint, NULL::text,
    CASE WHEN pg_advisory_unlock($1) THEN CASE WHEN set_config('application_name', 'onelock', false) IS NOT NULL THEN
        CASE WHEN pg_try_advisory_lock($2)
            THEN set_config('application_name', 'onelock ' || nextval('{schema}.number'::regclass)::text || $3, false)
            ELSE 'busy' END END END
