-- ?1 name, ?2 holder, ?3 now
SELECT token, held FROM onelock_line WHERE name = ?1 AND holder = ?2 AND ends > ?3;
