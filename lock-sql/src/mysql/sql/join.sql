-- :name :holder :mode :room :ahead (how many have to leave before it holds) :lease :waiter_lease (lock-delay included, microseconds) :note
-- What acquire.sql does for who queues, where nothing is unusual. Refused with an error, and without a trace, where the name
-- has no row, an entry has expired (the number is NULL), or this holder has an entry: then acquire.sql is asked.
-- One row, that of acquire.sql. MAX(number) alone would be looked up by the key as well, from the end of what was deleted there.
START TRANSACTION;
UPDATE `onelock_name` SET number = LAST_INSERT_ID(number + 1) WHERE name = :name AND number > 0;
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), IF(ROW_COUNT() > 0, LAST_INSERT_ID(), NULL), :ahead,
MIN(ends), MAX(number + 0), IF(MIN(mode) = MAX(mode) AND COUNT(*) <= MIN(room), MIN(ends), NULL)
INTO @now, @next, @ahead, @earliest, @before, @first FROM `onelock_line` WHERE name = :name;
INSERT INTO `onelock_line` (name, number, holder, mode, room, ends, joined, note)
VALUES (:name, IF(@earliest <= @now, NULL, @next), :holder, :mode, :room, @now + IF(@ahead, :waiter_lease, :lease), @now, :note);
SELECT CAST(@next AS SIGNED), CAST(@first - @now AS SIGNED), IF(@ahead, CONCAT(X'00', :holder), :holder), CAST(@ahead AS SIGNED), CAST(@before AS SIGNED);
COMMIT;
