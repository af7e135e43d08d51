-- :after (a name) :limit. The next names, and whether each has any entry.
SELECT n.name, CAST(EXISTS (SELECT 1 FROM `onelock_line` l WHERE l.name = n.name) AS SIGNED)
FROM `onelock_name` n WHERE n.name > :after ORDER BY n.name LIMIT :limit;
