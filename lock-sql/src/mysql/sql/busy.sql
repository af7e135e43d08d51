-- :name. A part of acquire.sql for who does not queue: microseconds to the earliest lease end of those that hold.
(
    SELECT MIN(l.ends) FROM `onelock_line` l JOIN (
        SELECT MIN(IF(t.kind <> t.front OR t.taken > r.room, t.number, NULL)) AS next FROM (
            SELECT number, LEFT(mode, 1) AS kind, FIRST_VALUE(LEFT(mode, 1)) OVER w AS front, SUM(weight) OVER w AS taken
            FROM `onelock_line` WHERE name = :name WINDOW w AS (ORDER BY number ROWS UNBOUNDED PRECEDING)
        ) t JOIN (
            SELECT room, MIN(number) AS first FROM `onelock_line` WHERE name = :name GROUP BY room
        ) r ON r.first <= t.number
    ) s ON s.next IS NULL OR l.number < s.next WHERE l.name = :name
) - @now
