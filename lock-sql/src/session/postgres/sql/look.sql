SELECT pg_backend_pid() + $2::bigint, l.mode, a.application_name FROM {holders}
