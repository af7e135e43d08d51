-- ?1 name
SELECT token, holder, mode, held, ends, joined, note FROM onelock_line WHERE name = ?1 ORDER BY token;
