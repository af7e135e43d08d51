SELECT pg_backend_pid() + $2::bigint, NULL::text,
    CASE WHEN set_config('application_name', 'onelock', false) IS NOT NULL THEN CASE WHEN {unlock}($1) THEN 'yes' END END
