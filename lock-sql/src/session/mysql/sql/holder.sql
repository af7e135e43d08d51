-- :key. One row: the session, and the one that holds the lock (NULL: none).
SELECT CAST(CONNECTION_ID() AS SIGNED) + :asked, CAST(IS_USED_LOCK(:key) AS SIGNED);
