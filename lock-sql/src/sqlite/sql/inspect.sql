-- ?1 name
SELECT token, mode, held, ends, joined, note FROM onelock_line WHERE name = ?1 ORDER BY token;
