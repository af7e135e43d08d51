-- :life :number :block. One row: a ceiling above the number, which is on the disk when this is answered.
START TRANSACTION;
UPDATE `onelock_session` SET ceiling = GREATEST(ceiling + 1, :number + :block) WHERE id = 1 AND life = :life;
SELECT ceiling FROM `onelock_session` WHERE id = 1 AND life = :life;
COMMIT;
