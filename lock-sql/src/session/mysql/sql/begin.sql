-- :life :shift :ceiling (what this client read of it before) :block. Every session asks it once. One row: what to add to the server's
-- counter, and the number that those which are given stay below. What the client knows is on the disk, and needs no commit while the
-- table says no less. Else this always writes, so that what it answers is on the disk, whoever wrote it first. A new life starts a block
-- above all that was given before, in case this server's disk or replica is a little behind; another life may have taken over in
-- between, and this one begun again.
START TRANSACTION;
SELECT COUNT(*) INTO @known FROM `onelock_session` WHERE id = 1 AND life = :life AND shift = :shift AND ceiling >= :ceiling;
UPDATE `onelock_session` SET
    shift = IF(life = :life, shift, ceiling + IF(life = 0, 0, :block) - CAST(UUID_SHORT() & 72057594037927935 AS SIGNED)),
    ceiling = ceiling + IF(life = :life, 1, IF(life = 0, 0, :block) + :block),
    life = :life
WHERE id = 1 AND @known = 0;
SELECT CAST(IF(@known, :shift, shift) AS SIGNED), CAST(IF(@known, :ceiling, ceiling) AS SIGNED) FROM `onelock_session` WHERE id = 1;
COMMIT;
