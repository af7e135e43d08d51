-- :tables. Which of our tables there are, and on what engine.
SELECT CONVERT(TABLE_NAME USING utf8mb4), CONVERT(COALESCE(ENGINE, '') USING utf8mb4) FROM information_schema.TABLES
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN (:tables);
