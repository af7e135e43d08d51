-- :some (their numbers). A row for each of these sessions that is there: which, whether it waits for a lock, and whose it is.
SELECT CAST(ID AS SIGNED), CAST(COALESCE(STATE = 'User lock', 0) AS SIGNED),
    CAST(CONCAT('session ', ID, ' of ', USER, '@', HOST) AS BINARY)
FROM information_schema.PROCESSLIST WHERE ID IN (:some);
