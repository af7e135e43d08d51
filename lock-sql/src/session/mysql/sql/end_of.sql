-- :key :which (a tag). Ends the session that holds the lock, if it says that it is this one's.
SELECT IF(IS_USED_LOCK(CONCAT('onelock/', COALESCE(holder, 0), '/t/:which')) = holder, holder, NULL) INTO @onelock
FROM (SELECT IS_USED_LOCK(:key) AS holder LIMIT 1) AS held;
KILL @onelock;
