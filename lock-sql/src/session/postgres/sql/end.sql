-- $1 the process, $2 when it began. One row: whether it is there; then it was told to end.
SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity
WHERE pid = $1::integer AND (extract(epoch FROM backend_start) * 1000000)::bigint = $2
