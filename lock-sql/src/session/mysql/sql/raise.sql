-- :life :shift :number :block. One row: what is added to the server's counter by now, and the ceiling. If the former is :shift, the
-- latter is above the number, and on the disk when this is answered.
START TRANSACTION;
UPDATE `onelock_session` SET ceiling = GREATEST(ceiling + 1, :number + :block) WHERE id = 1 AND life = :life AND shift = :shift;
SELECT shift, ceiling FROM `onelock_session` WHERE id = 1 AND life = :life;
COMMIT;
