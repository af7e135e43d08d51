-- The version of the tables.
SELECT CAST(version AS SIGNED) FROM `onelock_store` WHERE id = 1;
