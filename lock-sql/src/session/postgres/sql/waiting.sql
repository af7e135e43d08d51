-- $1 some sessions. One row: those that wait for a lock.
SELECT coalesce(array_agg(pid::bigint), '{}') FROM pg_locks WHERE pid = ANY($1::bigint[]) AND NOT granted
