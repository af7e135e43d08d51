-- :life :shift :ceiling (what this session knows) :number :block. One row: what is added to the server's counter, and a ceiling above the
-- number, which is on the disk when this is answered; or those of a larger token epoch. None where the table is another server's by now.
START TRANSACTION;
UPDATE `onelock_session` SET ceiling = GREATEST(ceiling + 1, :number + :block) WHERE id = 1 AND life = :life AND shift = :shift;
SELECT shift, ceiling FROM `onelock_session` WHERE id = 1 AND life = :life AND (shift = :shift OR ceiling >> 48 > :ceiling >> 48);
COMMIT;
