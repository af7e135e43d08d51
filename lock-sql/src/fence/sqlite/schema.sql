-- The largest fencing token that has written, for each name of a lock.
CREATE TABLE IF NOT EXISTS onelock_fence (
    name TEXT NOT NULL PRIMARY KEY,
    newest INTEGER NOT NULL
) STRICT, WITHOUT ROWID
