-- Rows: the schema version, the meta row.
BEGIN;
PRAGMA user_version;
SELECT number, boot FROM onelock_meta WHERE id = 1;
