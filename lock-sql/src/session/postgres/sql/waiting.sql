-- $1 some sessions, $2 when they began: another server, and a later time of this one, has other sessions of these numbers. One row:
-- those that wait for a lock.
SELECT coalesce(array_agg(w.pid), '{}'), coalesce(array_agg(w.born), '{}')
FROM unnest($1::bigint[], $2::bigint[]) AS w (pid, born)
JOIN pg_locks AS l ON l.pid = w.pid AND NOT l.granted
JOIN pg_stat_activity AS a ON a.pid = w.pid AND (extract(epoch FROM a.backend_start) * 1000000)::bigint = w.born
