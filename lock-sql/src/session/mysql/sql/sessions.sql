-- :ids (some sessions) :keys (of the lock of each). A row for each that is there: which, whether it waits for its lock, and whose it
-- is. One to which the lock was just given is in the state of waiting until it runs again, but has the lock at once.
SELECT CAST(ID AS SIGNED), CAST(COALESCE(STATE = 'User lock', 0) AND NOT COALESCE(IS_USED_LOCK(CASE ID :keys END) = ID, 0) AS SIGNED),
    CAST(CONCAT('session ', ID, ' of ', USER, '@', HOST) AS BINARY)
FROM information_schema.PROCESSLIST WHERE ID IN (:ids);
