-- What the role or the database says of time is for other work: here a wait ends with the lock, and the lease is ours. A role that
-- is set for the login may look at no session of it. Nothing here needs the disk: what a crash forgets of the numbers is less than the
-- lift after it. Keep-alives and checks of the connection are for clients that have gone silent while they wait, when their time of
-- idleness does not run.
SELECT set_config(name, value, false) FROM (VALUES
    ('role', 'none'), ('application_name', 'onelock'), ('synchronous_commit', 'off'),
    ('default_transaction_isolation', 'read committed'), ('default_transaction_read_only', 'off'),
    ('statement_timeout', '0'), ('lock_timeout', '0'),
    ('idle_in_transaction_session_timeout', '0'), ('idle_session_timeout', '0'),
    ('tcp_keepalives_idle', '5'), ('tcp_keepalives_interval', '3'), ('tcp_keepalives_count', '3')
) AS setting (name, value);
-- From version 17 on.
DO $$ BEGIN
    PERFORM set_config('transaction_timeout', '0', false);
EXCEPTION WHEN OTHERS THEN NULL;
END $$;
-- A server on a system that cannot see the other end go refuses it: there a dead waiter stays until its turn.
DO $$ BEGIN
    PERFORM set_config('client_connection_check_interval', '500ms', false);
EXCEPTION WHEN OTHERS THEN NULL;
END $$;
