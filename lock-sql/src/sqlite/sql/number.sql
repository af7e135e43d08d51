-- ?1 the last number given
UPDATE onelock_meta SET number = ?1 WHERE id = 1;
