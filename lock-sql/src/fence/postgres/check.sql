INSERT INTO onelock_fence AS fence (name, newest) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET newest = GREATEST(fence.newest, EXCLUDED.newest)
RETURNING fence.newest
