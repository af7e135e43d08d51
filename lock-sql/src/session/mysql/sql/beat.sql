-- One row: the session, and below zero where this server takes no writes: then another one may be the primary by now.
SELECT CAST(CONNECTION_ID() AS SIGNED), CAST(IF(CAST(@@GLOBAL.read_only AS CHAR) NOT IN ('0', 'OFF'), -1, 1) AS SIGNED)
