-- ?1 name, ?2 token
SELECT holder FROM onelock_line WHERE name = ?1 AND token = ?2;
