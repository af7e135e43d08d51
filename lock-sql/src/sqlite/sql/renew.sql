-- ?1 token, ?2 ends
UPDATE onelock_line SET ends = ?2 WHERE token = ?1 AND ends < ?2;
