-- :held (holder.sql) :token. Ends the session that holds the lock with this number.
SELECT IF(number = :token, session, NULL) INTO @onelock FROM (:held) AS seen;
KILL @onelock;
