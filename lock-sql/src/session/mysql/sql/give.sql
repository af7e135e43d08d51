-- :key. One row: the session, and whether it held the lock. It holds nothing afterwards.
SELECT CAST(CONNECTION_ID() AS SIGNED) + :asked AS session, CAST(RELEASE_LOCK(:key) AS SIGNED) AS gone, RELEASE_ALL_LOCKS() AS others;
