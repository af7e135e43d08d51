SELECT pg_backend_pid() + $5::bigint, NULL::text, CASE WHEN pg_terminate_backend(l.pid, $4) THEN 'yes' ELSE 'late' END
FROM {holders} AND split_part(a.application_name, ' ', $2) = $3
