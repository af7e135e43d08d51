-- :name. The living entries in the order of the line: number, mode, note, microseconds since joining, microseconds to the
-- lease's end.
SELECT number, CONVERT(mode USING utf8mb4), CONVERT(note USING utf8mb4),
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - joined AS age,
    ends - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS remains
FROM `onelock_line` WHERE name = :name AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) ORDER BY number;
