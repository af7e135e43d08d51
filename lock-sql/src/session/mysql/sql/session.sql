-- :holder. A row if that session is there: ours, whether it waits for a lock, and whose it is.
SELECT CAST(CONNECTION_ID() AS SIGNED) + :asked, CAST(COALESCE(STATE = 'User lock', 0) AS SIGNED),
    CAST(CONCAT('session ', ID, ' of ', USER, '@', HOST) AS BINARY)
FROM information_schema.PROCESSLIST WHERE ID = :holder;
