-- :pause (microseconds) :name :number :holder :mode :room. An entry that waits, after the pause. One row: its number (NULL: it
-- is not there), for whom this is, as acquire.sql says it, and how many have to leave before it holds. The range ends with the
-- entry itself.
DO SLEEP(:pause * 1e-6);
SELECT MAX(IF(number = :number AND holder = :holder, number, NULL)),
    IF(COUNT(*) <= MAX(IF(number = :number, room, 0)) AND MIN(mode) = MAX(mode), :holder, CONCAT(X'00', :holder)),
    CAST(COUNT(IF(mode <> :mode, 1, NULL)) + GREATEST(0, COUNT(IF(mode = :mode, 1, NULL)) - :room) AS SIGNED)
FROM `onelock_line` FORCE INDEX (PRIMARY) WHERE name = :name AND number <= :number
    AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
