-- $1 the key, $2 a part of the session's name, $3 for how long its end is waited for, $4 which part. A row if it held: whether it has ended.
SELECT pg_terminate_backend(l.pid, $3) FROM {holders} AND split_part(a.application_name, ' ', $4) = $2
