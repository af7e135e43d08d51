-- The tables of onelock, version 1, for MariaDB 10.6 and later and MySQL 8.0.16 and later. Run it in the database of
-- the locks as a user with CREATE and INSERT; it may be run again. For another table prefix replace `onelock_`.
-- The user of the services needs SELECT, INSERT, UPDATE and DELETE on `onelock_name` and `onelock_line`, SELECT and UPDATE on
-- `onelock_floor`, and nothing else.

-- The last number given for a name, and the row that every verb on the name locks first.
CREATE TABLE IF NOT EXISTS `onelock_name` (
    name VARBINARY(765) NOT NULL,
    number BIGINT NOT NULL CHECK (number >= 0),
    PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The entries. Times are microseconds since 1970-01-01 UTC on the server's clock.
CREATE TABLE IF NOT EXISTS `onelock_line` (
    name VARBINARY(765) NOT NULL,
    number BIGINT NOT NULL CHECK (number > 0 AND number < 9223372036854775807),
    holder BINARY(16) NOT NULL,
    mode VARBINARY(11) NOT NULL,
    room INT UNSIGNED NOT NULL,
    ends BIGINT NOT NULL,
    joined BIGINT NOT NULL,
    note VARBINARY(512) NOT NULL,
    PRIMARY KEY (name, number),
    UNIQUE KEY holder (holder, name),
    KEY ends (ends),
    CHECK (room > 0 AND ((mode = 'x' AND room = 1) OR (mode = 's' AND room = 4294967295) OR mode = CONCAT('p', room)))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The number below which no name that is asked for again may start, and the version of the tables.
CREATE TABLE IF NOT EXISTS `onelock_floor` (
    id TINYINT UNSIGNED NOT NULL,
    version INT UNSIGNED NOT NULL,
    number BIGINT NOT NULL CHECK (number >= 0),
    PRIMARY KEY (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT IGNORE INTO `onelock_floor` (id, version, number) VALUES (1, 1, 0);
