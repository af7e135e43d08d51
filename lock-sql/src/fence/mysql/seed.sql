INSERT IGNORE INTO onelock_fence (name, newest) VALUES (?, 0)
