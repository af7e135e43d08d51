-- $1 the key, $2 whether it is shared (1). One row: the session, and a number if it was held.
SELECT pg_backend_pid()::bigint, CASE
    WHEN CASE $2::integer WHEN 0 THEN pg_advisory_unlock($1) ELSE pg_advisory_unlock_shared($1) END
    THEN (set_config('application_name', 'onelock', false) IS NOT NULL)::integer::bigint
END
