-- :key. One row: the session, and whether it held the lock. It holds nothing afterwards.
SELECT CAST(CONNECTION_ID() AS SIGNED) + :asked, CAST(RELEASE_LOCK(:key) AS SIGNED), RELEASE_ALL_LOCKS();
