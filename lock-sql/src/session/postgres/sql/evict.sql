-- $1 the key, $2 a part of the session's name, $3 which part. A row if it holds: it was told to end.
SELECT pg_terminate_backend(l.pid) FROM {holders} AND split_part(a.application_name, ' ', $3) = $2
