-- :name :number :nobody (a holder that nobody is)
-- One row: whether the entry was there. It keeps its place, but its client can neither renew nor release it any more.
START TRANSACTION;
SELECT number INTO @number FROM `onelock_name` WHERE name = :name FOR UPDATE;
UPDATE `onelock_line` SET holder = :nobody
WHERE name = :name AND number = :number AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
SET @there := ROW_COUNT();
SELECT CAST(@there AS SIGNED);
COMMIT;
