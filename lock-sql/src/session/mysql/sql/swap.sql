-- :old (the key of the lock to give back) :key :shift :tag. One row of one text: the session, the tag, 0 where the first lock was not
-- held, and nothing is held afterwards that was not before; else 1, and where the other was free what take.sql says of it. IF
-- looks at its branches in order.
SELECT CONCAT_WS(' ', CONNECTION_ID() + :asked, :tag, IF(RELEASE_LOCK(:old) = 1, IF(RELEASE_ALL_LOCKS() >= 0, CONCAT_WS(' ', 1,
    @number := IF(GET_LOCK(:key, 0) = 1, CAST(UUID_SHORT() & 72057594037927935 AS SIGNED) + (:shift), NULL),
    IF(@number IS NULL, NULL, CAST(@number AS SIGNED) + 0 * (GET_LOCK(CONCAT('onelock/', CONNECTION_ID(), '/t/', :tag), 0)
        + GET_LOCK(CONCAT('onelock/', CONNECTION_ID(), '/1/', CAST(@number AS SIGNED) >> 12), 0)
        + GET_LOCK(CONCAT('onelock/', CONNECTION_ID(), '/0/', CAST(@number AS SIGNED) & 4095), 0)))), NULL), 0)) AS a;
