-- Touches every column and needs every right that a verb needs, and changes nothing.
START TRANSACTION;
SELECT COUNT(number) INTO @number FROM `onelock_name` WHERE name = '';
SELECT COUNT(*), COUNT(holder), COUNT(mode), COUNT(room), COUNT(ends), COUNT(joined), COUNT(note)
INTO @number, @number, @number, @number, @number, @number, @number FROM `onelock_line` WHERE name = '' AND number = 0;
SELECT COUNT(version) INTO @number FROM `onelock_floor` WHERE id = 0 AND number = 0;
INSERT INTO `onelock_name` (name, number) SELECT '', 0 FROM DUAL WHERE FALSE;
INSERT INTO `onelock_line` (name, number, holder, mode, room, ends, joined, note)
SELECT '', 0, '', '', 0, 0, 0, '' FROM DUAL WHERE FALSE;
UPDATE `onelock_name` SET number = 0 WHERE name = '' AND FALSE;
UPDATE `onelock_line` SET ends = 0 WHERE name = '' AND FALSE;
UPDATE `onelock_floor` SET number = number WHERE id = 0;
DELETE FROM `onelock_line` WHERE name = '' AND FALSE;
DELETE FROM `onelock_name` WHERE name = '' AND FALSE;
ROLLBACK;
