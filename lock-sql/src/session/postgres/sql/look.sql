SELECT pg_backend_pid(), l.mode, a.application_name FROM {holders}
