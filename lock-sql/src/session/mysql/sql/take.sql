-- :idle (a setting, or nothing) :key :patience (seconds) :shift :own (the session's prefix) :tag
-- One row: the session, the number (NULL: not taken), and for whom this is: the tag where it is a grant, a zero and the tag where not.
-- The counter is asked by who holds the lock. The other locks are never waited for: they say what this session holds.
SET :idle @number = IF(GET_LOCK(:key, :patience) = 1, CAST(UUID_SHORT() & 72057594037927935 AS SIGNED) + (:shift), NULL);
SELECT CAST(CONNECTION_ID() AS SIGNED) + :asked, CAST(@number AS SIGNED), IF(@number IS NULL, CONCAT(X'00', :tag), :tag),
    IF(@number IS NULL, NULL, GET_LOCK(CONCAT(:own, '0/', @number & 4095), 0)
        + GET_LOCK(CONCAT(:own, '1/', (@number >> 12) & 4095), 0) + GET_LOCK(CONCAT(:own, '2/', (@number >> 24) & 4095), 0)
        + GET_LOCK(CONCAT(:own, '3/', (@number >> 36) & 4095), 0) + GET_LOCK(CONCAT(:own, 't/', :tag), 0));
