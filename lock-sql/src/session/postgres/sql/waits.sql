SELECT pg_backend_pid(), NULL::text, (SELECT 'yes' FROM pg_locks WHERE pid = $1::integer AND NOT granted LIMIT 1)
