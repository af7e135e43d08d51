-- The tables of onelock, version 2, for MariaDB 10.6 and later and MySQL 8.0.16 and later. Run it in the database of
-- the locks as a user with CREATE and INSERT; it may be run again. For another table prefix replace `onelock_`.
-- The user of the services needs SELECT, INSERT, UPDATE and DELETE on `onelock_line`, SELECT and UPDATE on
-- `onelock_counter` and `onelock_store`, and nothing else.

-- The last number given in each of 1 024 buckets of names. Who joins a line locks the row of its bucket first.
CREATE TABLE IF NOT EXISTS `onelock_counter` (
    bucket SMALLINT UNSIGNED NOT NULL,
    number BIGINT NOT NULL CHECK (number >= 0),
    PRIMARY KEY (bucket)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The entries. Times are microseconds since 1970-01-01 UTC on the server's clock. An entry takes a free slot of its name:
-- InnoDB reuses the place of a deleted row with the same key, so deleted rows that cannot be purged stay few. The character set is
-- that of the texts in the CHECK.
CREATE TABLE IF NOT EXISTS `onelock_line` (
    name VARBINARY(765) NOT NULL,
    slot INT UNSIGNED NOT NULL,
    number BIGINT NOT NULL CHECK (number > 0 AND number < 9223372036854775807),
    holder BINARY(16) NOT NULL,
    mode VARBINARY(22) NOT NULL,
    room INT UNSIGNED NOT NULL,
    weight INT UNSIGNED NOT NULL,
    ends BIGINT NOT NULL,
    joined BIGINT NOT NULL,
    note VARBINARY(512) NOT NULL,
    PRIMARY KEY (name, slot),
    UNIQUE KEY holder (holder, name),
    CHECK (room > 0 AND (
        (mode = 'x' AND room = 1 AND weight = 1) OR (mode = 's' AND room = 4294967295 AND weight = 0)
        OR (mode = CONCAT('p', room) AND weight = 1)
        OR (mode = CONCAT('p', room, 'w', weight) AND weight > 1 AND weight <= room)
    ))
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 ROW_FORMAT = DYNAMIC;

-- The version of the tables, and when expired entries were last swept.
CREATE TABLE IF NOT EXISTS `onelock_store` (
    id TINYINT UNSIGNED NOT NULL,
    version INT UNSIGNED NOT NULL,
    swept BIGINT NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT IGNORE INTO `onelock_counter` (bucket, number)
WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 31)
SELECT a.i * 32 + b.i, 0 FROM n a JOIN n b ORDER BY 1;

INSERT IGNORE INTO `onelock_store` (id, version, swept) VALUES (1, 2, 0);
