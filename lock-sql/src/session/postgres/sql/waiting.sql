-- $1 some sessions. A row for each that waits for a lock.
SELECT pid::bigint FROM pg_locks WHERE pid = ANY($1::bigint[]) AND NOT granted
