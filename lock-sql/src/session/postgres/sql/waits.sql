SELECT pg_backend_pid() + $2::bigint, NULL::text, (SELECT 'yes' FROM pg_locks WHERE pid = $1::integer AND NOT granted LIMIT 1)
