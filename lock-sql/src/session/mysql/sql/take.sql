-- :idle (a statement that sets how long the session may be idle, or nothing) :key :patience (seconds) :shift :tag. One row of one
-- text, each part after a blank: the session, the tag, and where the lock was taken the number and the one that this session now
-- says it has. A column more costs the driver more than all that stands in it.
-- The counter is asked by who holds the lock. The other locks are never waited for: they say what this session holds, the lowest
-- digits last. One statement is answered once. That its parts are computed in their order nobody promises, so the last one
-- shows it: where it is not the number, the number is not believed.
:idle SELECT CONCAT_WS(' ', CONNECTION_ID() + :asked, :tag,
    @number := IF(GET_LOCK(:key, :patience) = 1, CAST(UUID_SHORT() & 72057594037927935 AS SIGNED) + (:shift), NULL),
    IF(@number IS NULL, NULL, CAST(@number AS SIGNED) + 0 * (GET_LOCK(CONCAT('onelock/', CONNECTION_ID(), '/t/', :tag), 0)
        + GET_LOCK(CONCAT('onelock/', CONNECTION_ID(), '/1/', CAST(@number AS SIGNED) >> 12), 0)
        + GET_LOCK(CONCAT('onelock/', CONNECTION_ID(), '/0/', CAST(@number AS SIGNED) & 4095), 0)))) AS a;
