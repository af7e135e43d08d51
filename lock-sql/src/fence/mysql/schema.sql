-- The largest fencing token that has written, for each name of a lock.
CREATE TABLE IF NOT EXISTS onelock_fence (
    name varbinary(255) NOT NULL PRIMARY KEY,
    newest bigint NOT NULL
) ENGINE = InnoDB
