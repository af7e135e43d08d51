-- ?1 now, ?2 boot id. Rows: the schema version, the meta row, then the tokens that expired.
-- Expired entries of every name go, so that a name nobody asks for again leaves nothing. Entries of another boot are
-- left to reboot.sql: their times mean nothing on this boot's clock.
BEGIN IMMEDIATE;
PRAGMA user_version;
SELECT number, boot FROM onelock_meta WHERE id = 1;
DELETE FROM onelock_line
WHERE ends <= ?1 AND (SELECT boot FROM onelock_meta WHERE id = 1) = ?2
RETURNING token;
