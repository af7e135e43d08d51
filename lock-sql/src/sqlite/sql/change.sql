-- ?1 token, ?2 held, ?3 ends
UPDATE onelock_line SET held = ?2, ends = ?3 WHERE token = ?1;
