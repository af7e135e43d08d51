SELECT pg_backend_pid() + $4::bigint, NULL::text, CASE WHEN pg_terminate_backend(pid, $3) THEN 'yes' ELSE 'late' END
FROM pg_stat_activity
WHERE pid = $1::integer AND (extract(epoch FROM backend_start) * 1000000)::bigint = $2
