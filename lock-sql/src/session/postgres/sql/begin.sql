SELECT pg_is_in_recovery(), pg_backend_pid()::bigint,
    (SELECT (extract(epoch FROM backend_start) * 1000000)::bigint FROM pg_stat_get_activity(pg_backend_pid())),
    CASE WHEN NOT pg_is_in_recovery() THEN {schema}.begin_session(0) END
