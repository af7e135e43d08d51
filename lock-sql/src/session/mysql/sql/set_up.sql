-- What session.sql leaves; the comments are for MariaDB or for MySQL only, which each executes. One row: the session, twice, because
-- an id that arrives altered may be that of another session; what tells this life of the server from every other that has been up
-- for a second; for how many this one has; and what the table says, of this life or another.
-- Both clocks are read once, when the statement starts, so their difference is the start, however clocks are set.
SET SESSION wait_timeout = 31536000;
SELECT CAST(CONNECTION_ID() AS SIGNED), CAST(CONNECTION_ID() AS SIGNED),
    CAST(CONCAT_WS('/', UNIX_TIMESTAMP() - CAST(VARIABLE_VALUE AS SIGNED),
    @@global.hostname, @@global.port, @@global.server_id, @@global.datadir) AS BINARY), CAST(VARIABLE_VALUE AS SIGNED),
    life, shift, ceiling
FROM `onelock_session` JOIN /*M! information_schema.GLOBAL_STATUS */ /*!80000 performance_schema.global_status */
WHERE id = 1 AND VARIABLE_NAME = 'UPTIME';
