-- :idle (a statement that sets how long the session may be idle, or nothing) :key :patience (seconds) :shift :own (the session's prefix)
-- :tag. One row: the session, the number (NULL: not taken), for whom this is (the tag where it is a grant, a zero and the tag where
-- not), and the number that this session now says it has.
-- The counter is asked by who holds the lock. The other locks are never waited for: they say what this session holds, the lowest
-- digits last. One statement is answered once. That its columns are computed in their order nobody promises, so the last one
-- shows it: where it is not the number, the number is not believed.
:idle SELECT CAST(CONNECTION_ID() AS SIGNED) + :asked AS session,
    @number := IF(GET_LOCK(:key, :patience) = 1, CAST(UUID_SHORT() & 72057594037927935 AS SIGNED) + (:shift), NULL) AS number,
    IF(@number IS NULL, CONCAT(X'00', :tag), :tag) AS whose,
    IF(@number IS NULL, NULL, CAST(@number AS SIGNED) + 0 * (GET_LOCK(CONCAT(:own, 't/', :tag), 0)
        + GET_LOCK(CONCAT(:own, '1/', CAST(@number AS SIGNED) >> 12), 0)
        + GET_LOCK(CONCAT(:own, '0/', CAST(@number AS SIGNED) & 4095), 0))) AS said;
