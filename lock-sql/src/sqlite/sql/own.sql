-- ?1 name, ?2 holder
SELECT token, holder, mode, held, ends, joined, note FROM onelock_line WHERE name = ?1 AND holder = ?2;
