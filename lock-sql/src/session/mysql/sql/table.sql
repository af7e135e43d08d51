-- One row: the version of the table, and the space of its locks.
SELECT CAST(version AS SIGNED), space FROM `onelock_session` WHERE id = 1;
