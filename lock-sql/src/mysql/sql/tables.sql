-- :tables. Which of our tables there are, and on what engine.
SELECT CAST(TABLE_NAME AS BINARY), CAST(COALESCE(ENGINE, '') AS BINARY) FROM information_schema.TABLES
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN (:tables);
