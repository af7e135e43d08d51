-- The key, for how many seconds to wait, what is added to the server's counter, and whose it is. One row: the session, and the number;
-- NULL: busy; below zero: this server takes no writes, and another one may be the primary by now.
-- That and the counter are asked by who holds the lock. The further locks, which nobody else asks for, say to others whose it is and the
-- number: its digits of 12 bits, each with its place. The lowest is last: who sees that sees all. The operands of an expression are
-- evaluated in order, so @n is the number of this statement; a derived table would cost more than all these locks.
SELECT CAST(CONNECTION_ID() AS SIGNED), CAST(IF(GET_LOCK(?, ?) = 1,
    IF(CAST(@@GLOBAL.read_only AS CHAR) NOT IN ('0', 'OFF'), -1, (@n := CAST(UUID_SHORT() & 72057594037927935 AS SIGNED) + ?)
    + 0 * (GET_LOCK(CONCAT('onelock/', CONNECTION_ID(), '/t/', ?), 0)
    + IF(@n >> 60, GET_LOCK(CONCAT('onelock/', CONNECTION_ID(), '/5/', @n >> 60), 0), 0)
    + IF(@n >> 48, GET_LOCK(CONCAT('onelock/', CONNECTION_ID(), '/4/', @n >> 48 & 4095), 0), 0)
    + IF(@n >> 36, GET_LOCK(CONCAT('onelock/', CONNECTION_ID(), '/3/', @n >> 36 & 4095), 0), 0)
    + IF(@n >> 24, GET_LOCK(CONCAT('onelock/', CONNECTION_ID(), '/2/', @n >> 24 & 4095), 0), 0)
    + IF(@n >> 12, GET_LOCK(CONCAT('onelock/', CONNECTION_ID(), '/1/', @n >> 12 & 4095), 0), 0)
    + GET_LOCK(CONCAT('onelock/', CONNECTION_ID(), '/0/', @n & 4095), 0))), NULL) AS SIGNED)
