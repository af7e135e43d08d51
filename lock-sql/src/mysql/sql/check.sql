-- Touches every column and needs every right that a verb needs, and changes nothing.
START TRANSACTION;
SELECT COUNT(bucket), COUNT(number) INTO @number, @number FROM `onelock_counter` WHERE bucket = 0;
SELECT COUNT(slot), COUNT(number), COUNT(holder), COUNT(mode), COUNT(room), COUNT(weight), COUNT(ends), COUNT(joined), COUNT(note)
INTO @number, @number, @number, @number, @number, @number, @number, @number, @number FROM `onelock_line` WHERE name = '';
SELECT COUNT(version), COUNT(swept) INTO @number, @number FROM `onelock_store` WHERE id = 0;
INSERT INTO `onelock_line` (name, slot, number, holder, mode, room, weight, ends, joined, note)
SELECT '', 0, 0, '', '', 0, 0, 0, 0, '' FROM DUAL WHERE FALSE;
UPDATE `onelock_counter` SET number = 0 WHERE bucket = 0 AND FALSE;
UPDATE `onelock_line` SET ends = 0 WHERE name = '' AND FALSE;
UPDATE `onelock_store` SET swept = swept WHERE id = 0;
DELETE FROM `onelock_line` WHERE name = '' AND FALSE;
ROLLBACK;
