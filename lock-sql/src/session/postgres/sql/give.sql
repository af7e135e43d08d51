-- $1 the key. One row: the session, and whether it was held.
SELECT pg_backend_pid(), CASE WHEN {unlock}($1) THEN set_config('application_name', 'onelock', false) IS NOT NULL ELSE false END
