-- :life. A row if the table belongs to this life of the server: what begin.sql gave.
SELECT shift, ceiling FROM `onelock_session` WHERE id = 1 AND life = :life;
