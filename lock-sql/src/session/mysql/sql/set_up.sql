-- :limit (the variable that ends long statements) :uptime (the table that knows how long the server has been up). What session.sql
-- leaves. One row: the session, what tells this life of the server
-- from every other that has been up for a second, and for how many this one has.
-- Both clocks are read once, when the statement starts, so their difference is the start, however clocks are set.
SET SESSION wait_timeout = 31536000, SESSION :limit = 0;
SELECT CAST(CONNECTION_ID() AS SIGNED), CAST(CONCAT_WS('/', UNIX_TIMESTAMP() - CAST(VARIABLE_VALUE AS SIGNED),
    @@global.hostname, @@global.port, @@global.server_id, @@global.datadir) AS BINARY), CAST(VARIABLE_VALUE AS SIGNED)
FROM :uptime WHERE VARIABLE_NAME = 'UPTIME';
