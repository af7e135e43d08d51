-- :limit. Names without any entry.
SELECT n.name FROM `onelock_name` n LEFT JOIN `onelock_line` l ON l.name = n.name WHERE l.name IS NULL LIMIT :limit;
