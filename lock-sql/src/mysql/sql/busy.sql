-- :name. A part of acquire.sql for who does not queue: microseconds to the earliest lease end of those that hold.
(
    SELECT MIN(l.ends) FROM `onelock_line` l JOIN (
        SELECT MIN(IF(mode = front AND place <= room, NULL, number)) AS next FROM (
            SELECT number, mode, room, FIRST_VALUE(mode) OVER w AS front, ROW_NUMBER() OVER w AS place
            FROM `onelock_line` WHERE name = :name WINDOW w AS (ORDER BY number)
        ) p
    ) s ON s.next IS NULL OR l.number < s.next WHERE l.name = :name
) - @now
