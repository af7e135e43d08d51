-- :pause (microseconds) :name :number :holder :ahead (how many have to leave before it holds, of all up to the entry itself). An
-- entry that waits, after the pause. One row: its number (NULL: it is not there), for whom this is, as acquire.sql says it, and
-- :ahead. The range ends with the entry itself.
DO SLEEP(:pause * 1e-6);
SELECT MAX(IF(number = :number AND holder = :holder, number, NULL)), IF(:ahead = 0, :holder, CONCAT(X'00', :holder)),
CAST(:ahead AS SIGNED)
FROM `onelock_line` FORCE INDEX (PRIMARY) WHERE name = :name AND number <= :number
AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
