-- ?1 name, ?2 token. A row when the entry was there.
DELETE FROM onelock_line WHERE token = ?2 AND name = ?1 RETURNING token;
