INSERT INTO onelock_fence (name, newest) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET newest = max(newest, excluded.newest)
RETURNING newest
