-- ?1 name, ?2 now
SELECT token, mode, ends, joined, note FROM onelock_line WHERE name = ?1 AND ends > ?2 ORDER BY token;
