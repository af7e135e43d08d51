-- ?1 name, ?2 holder. A row when the entry is there.
SELECT token, held FROM onelock_line WHERE name = ?1 AND holder = ?2;
