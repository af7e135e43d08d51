-- ?1 name, ?2 holder: how many wait ahead of it, up to fifty
SELECT count(*) FROM (
    SELECT 1 FROM onelock_line
    WHERE name = ?1 AND NOT held AND token < (SELECT token FROM onelock_line WHERE name = ?1 AND holder = ?2)
    LIMIT 50
);
