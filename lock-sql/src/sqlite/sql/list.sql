-- ?1 the first name, ?2 the end of the prefix, ?3 the name the page before ended with, ?4 how many
SELECT DISTINCT name FROM onelock_line WHERE name >= ?1 AND name < ?2 AND name > ?3 ORDER BY name LIMIT ?4;
