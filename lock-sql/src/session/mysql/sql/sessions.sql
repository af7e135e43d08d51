-- :asked (some sessions, the lock of each, and whether it is of this life of the server: another server, and another life of this one,
-- has other sessions of these numbers). A row for each that is there: which, whether it waits for its lock, and whose it is. One to
-- which the lock was just given is in the state of waiting until it runs again, but has the lock at once.
SELECT CAST(ID AS SIGNED), CAST(COALESCE(STATE = 'User lock', 0) AND NOT COALESCE(IS_USED_LOCK(name) = ID, 0) AS SIGNED),
    CAST(CONCAT('session ', ID, ' of ', USER, '@', HOST) AS BINARY)
FROM (:asked) AS asked JOIN information_schema.PROCESSLIST ON ID = session WHERE here;
