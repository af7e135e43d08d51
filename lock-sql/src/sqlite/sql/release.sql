-- ?1 name, ?2 holder. A row when the entry was there.
DELETE FROM onelock_line WHERE name = ?1 AND holder = ?2 RETURNING token;
