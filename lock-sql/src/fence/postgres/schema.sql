-- The largest fencing token that has written, for each name of a lock.
CREATE TABLE IF NOT EXISTS onelock_fence (
    name text COLLATE "C" PRIMARY KEY,
    newest bigint NOT NULL
)
