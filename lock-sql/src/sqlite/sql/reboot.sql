-- ?1 boot id
UPDATE onelock_meta SET boot = ?1 WHERE id = 1;
