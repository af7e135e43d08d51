-- :key :shift. One row: the session that holds the lock (NULL: none), and the bits below the token epoch of a number above all that
-- were drawn before.
SELECT CAST(IS_USED_LOCK(:key) AS SIGNED), CAST(CAST(UUID_SHORT() & 72057594037927935 AS SIGNED) + (:shift) & 281474976710655 AS SIGNED);
