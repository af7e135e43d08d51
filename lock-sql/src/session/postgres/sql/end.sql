-- $1 the process, $2 when it began, $3 for how long its end is waited for. A row if it was there: whether it has ended.
SELECT pg_terminate_backend(pid, $3) FROM pg_stat_activity
WHERE pid = $1::integer AND (extract(epoch FROM backend_start) * 1000000)::bigint = $2
