-- :name. The entries in the order of the line: number, mode, note, microseconds since joining, microseconds to the
-- lease's end (0 or less: it has expired and only waits to be dropped).
SELECT number, mode, note,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - joined,
    ends - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
FROM `onelock_line` WHERE name = :name ORDER BY number;
