-- ?1 the first name, ?2 the end of the prefix, ?3 the name the page before ended with, ?4 how many names, ?5 now
SELECT name, sum(held), sum(1 - held) FROM onelock_line
WHERE name >= ?1 AND name < ?2 AND name > ?3 AND ends > ?5
GROUP BY name ORDER BY name LIMIT ?4;
