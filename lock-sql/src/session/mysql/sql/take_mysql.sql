-- The same as take.sql in two statements: MySQL is about to give up variables that are set within a SELECT.
:idle SET @number = IF(GET_LOCK(:key, :patience) = 1, CAST(UUID_SHORT() & 72057594037927935 AS SIGNED) + (:shift), NULL);
SELECT CONCAT_WS(' ', CONNECTION_ID() + :asked, :tag, CAST(@number AS SIGNED),
    IF(@number IS NULL, NULL, CAST(@number AS SIGNED) + 0 * (GET_LOCK(CONCAT('onelock/', CONNECTION_ID(), '/t/', :tag), 0)
        + GET_LOCK(CONCAT('onelock/', CONNECTION_ID(), '/1/', CAST(@number AS SIGNED) >> 12), 0)
        + GET_LOCK(CONCAT('onelock/', CONNECTION_ID(), '/0/', CAST(@number AS SIGNED) & 4095), 0)))) AS a;
