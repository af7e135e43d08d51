SELECT pg_backend_pid(), NULL::text,
    CASE WHEN set_config('application_name', 'onelock', false) IS NOT NULL THEN CASE WHEN {unlock}($1) THEN 'yes' END END
