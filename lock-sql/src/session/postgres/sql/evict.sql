-- $1 the key, $2 a part of the session's name, $3 which part. One row: whether it holds; then it was told to end.
SELECT count(pg_terminate_backend(l.pid)) > 0 FROM {holders} AND split_part(a.application_name, ' ', $3) = $2
