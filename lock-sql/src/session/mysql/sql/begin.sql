-- :life :block. Every session asks it, unless its client has read of this life before. One row: what to add to the server's counter, and
-- the number that those which are given stay below. A new life starts a block above all that was given before, in case this server's
-- disk or replica is a little behind.
-- It always writes, so that what it answers is on the disk, whoever wrote it first.
START TRANSACTION;
UPDATE `onelock_session` SET
    shift = IF(life = :life, shift, ceiling + IF(life = 0, 0, :block) - CAST(UUID_SHORT() & 72057594037927935 AS SIGNED)),
    ceiling = ceiling + IF(life = :life, 1, IF(life = 0, 0, :block) + :block),
    life = :life
WHERE id = 1;
SELECT shift, ceiling FROM `onelock_session` WHERE id = 1;
COMMIT;
