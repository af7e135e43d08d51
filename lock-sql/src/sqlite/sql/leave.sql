-- ?1 token
DELETE FROM onelock_line WHERE token = ?1;
