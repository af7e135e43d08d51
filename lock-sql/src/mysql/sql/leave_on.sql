-- :name :number :holder :after (a look at the waiters of this client) :ring (ring.sql, or nothing)
-- What leave.sql does. One row: whether the entry was there, what :after says. A bell is rung before the commit: who hears it waits
-- until that is seen, and not until it is on the disk.
START TRANSACTION;
SET @now := TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
DELETE FROM `onelock_line` WHERE name = :name AND number = :number AND holder = :holder AND ends > @now;
SELECT CAST(ROW_COUNT() AS SIGNED), :after;
:ring
COMMIT;
