-- ?1 name, ?2 now
SELECT mode FROM onelock_line WHERE name = ?1 AND ends > ?2 ORDER BY token;
