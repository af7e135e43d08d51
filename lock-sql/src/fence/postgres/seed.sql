INSERT INTO onelock_fence (name, newest) VALUES ($1, 0) ON CONFLICT (name) DO NOTHING
