SELECT pg_backend_pid() + $2::bigint, NULL::text,
    CASE WHEN {unlock}($1) THEN CASE WHEN set_config('application_name', 'onelock', false) IS NOT NULL THEN 'yes' END END
