-- :name :holder :mode :room. Of who does not queue: microseconds to the earliest lease end of those that hold, where they are all there
-- are and do not let it in; otherwise NULL, and acquire.sql is asked. Locks and changes nothing: what it sees stands in the line at that moment.
SELECT CAST(IF(MIN(mode) = MAX(mode) AND COUNT(*) <= MIN(room) AND COUNT(IF(holder = :holder, 1, NULL)) = 0
AND (MIN(mode) <> :mode OR COUNT(*) >= :room), MIN(ends), NULL) AS SIGNED) - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM `onelock_line` FORCE INDEX (PRIMARY) WHERE name = :name AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
