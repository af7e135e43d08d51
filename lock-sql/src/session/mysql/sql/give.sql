-- The key. One row: the session, and whether it held the lock. It holds nothing afterwards.
SELECT CAST(CONNECTION_ID() AS SIGNED), CAST(COALESCE(RELEASE_LOCK(?), 0) + 0 * RELEASE_ALL_LOCKS() AS SIGNED)
