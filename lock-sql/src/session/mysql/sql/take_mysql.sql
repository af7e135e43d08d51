-- The same as take.sql in two statements: MySQL is about to give up variables that are set within a SELECT.
:idle SET @number = IF(GET_LOCK(:key, :patience) = 1, CAST(UUID_SHORT() & 72057594037927935 AS SIGNED) + (:shift), NULL);
SELECT CAST(CONNECTION_ID() AS SIGNED) + :asked AS session, CAST(@number AS SIGNED) AS number,
    IF(@number IS NULL, CONCAT(X'00', :tag), :tag) AS whose,
    IF(@number IS NULL, NULL, CAST(@number AS SIGNED) + 0 * (GET_LOCK(CONCAT(:own, 't/', :tag), 0)
        + GET_LOCK(CONCAT(:own, '1/', CAST(@number AS SIGNED) >> 12), 0)
        + GET_LOCK(CONCAT(:own, '0/', CAST(@number AS SIGNED) & 4095), 0))) AS said;
