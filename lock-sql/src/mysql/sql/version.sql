-- The version of the tables.
SELECT CAST(version AS SIGNED) FROM `onelock_floor` WHERE id = 1;
