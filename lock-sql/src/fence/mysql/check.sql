INSERT INTO onelock_fence (name, newest) VALUES (?, LAST_INSERT_ID(?))
ON DUPLICATE KEY UPDATE newest = LAST_INSERT_ID(GREATEST(newest, VALUES(newest)))
