-- ?1 name
SELECT mode FROM onelock_line WHERE name = ?1 ORDER BY token;
