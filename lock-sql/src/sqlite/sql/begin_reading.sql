-- ?1 now. Rows: the schema version, the meta row, and one more when some lease has run out.
BEGIN;
PRAGMA user_version;
SELECT number, boot FROM onelock_meta WHERE id = 1;
SELECT token FROM onelock_line WHERE ends <= ?1 LIMIT 1;
