-- :asked (some sessions, and the lock of each). A row for each of them that waits for its lock. One to which the lock was just given is
-- in the state of waiting until it runs again, but has the lock at once.
SELECT CAST(ID AS SIGNED) FROM (SELECT 0 AS session, 'onelock' AS name:asked) AS asked
JOIN information_schema.PROCESSLIST ON ID = session
WHERE STATE = 'User lock' AND NOT COALESCE(IS_USED_LOCK(name) = ID, 0);
