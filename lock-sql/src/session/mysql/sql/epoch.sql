-- :life :number (the token epoch, where numbers have it) :block. Begins it, if the numbers are of a smaller one. One row: what to add to
-- the server's counter, and the ceiling.
-- Their lower bits go on. Sessions that know the old ceiling would give numbers below it without asking: the counter is taken past it
-- before anybody is told of the epoch, and the row is locked against a higher one. DO is not in the log of statements.
START TRANSACTION;
DO (SELECT BENCHMARK(GREATEST(ceiling - shift - CAST(UUID_SHORT() & 72057594037927935 AS SIGNED), 0), UUID_SHORT())
    FROM `onelock_session` WHERE id = 1 AND life = :life AND ceiling < :number FOR UPDATE);
UPDATE `onelock_session` SET
    shift = shift + :number - CAST(ceiling & 9223090561878065152 AS SIGNED),
    ceiling = :number + CAST(ceiling & 281474976710655 AS SIGNED) + :block
WHERE id = 1 AND life = :life AND ceiling < :number;
SELECT shift, ceiling FROM `onelock_session` WHERE id = 1 AND life = :life;
COMMIT;
