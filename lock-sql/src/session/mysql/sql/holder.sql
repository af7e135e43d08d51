-- :key :shift. One row: the session, the one that holds the lock (NULL: none), and a number above all that were drawn before.
SELECT CAST(CONNECTION_ID() AS SIGNED) + :asked, CAST(IS_USED_LOCK(:key) AS SIGNED),
    CAST(UUID_SHORT() & 72057594037927935 AS SIGNED) + (:shift);
