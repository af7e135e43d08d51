-- ?1 the first name, ?2 the end of the prefix, ?3 the name the page before ended with, ?4 how many. A row for each name: it, and the
-- modes of its line.
SELECT name, group_concat(mode, ' ' ORDER BY token) FROM onelock_line
WHERE name >= ?1 AND name < ?2 AND name > ?3 GROUP BY name ORDER BY name LIMIT ?4;
