-- :held (holder.sql) :which. Ends the session that holds the lock with this number.
SELECT IF(number = :which, session, NULL) INTO @onelock FROM (:held) AS seen;
KILL @onelock;
