-- $1 the process, $2 when it began. A row if it is there: it was told to end.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = $1::integer AND (extract(epoch FROM backend_start) * 1000000)::bigint = $2
