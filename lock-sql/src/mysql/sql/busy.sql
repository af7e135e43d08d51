-- :name. A part of acquire.sql for who does not queue: microseconds to the earliest lease end of those that hold.
(
    SELECT MIN(l.ends) FROM `onelock_line` l JOIN (
        SELECT MIN(IF(kind = front AND taken <= smallest, NULL, number)) AS next FROM (
            SELECT number, LEFT(mode, 1) AS kind, FIRST_VALUE(LEFT(mode, 1)) OVER w AS front, SUM(weight) OVER w AS taken,
                MIN(room) OVER w AS smallest
            FROM `onelock_line` WHERE name = :name WINDOW w AS (ORDER BY number)
        ) p
    ) s ON s.next IS NULL OR l.number < s.next WHERE l.name = :name
) - @now
