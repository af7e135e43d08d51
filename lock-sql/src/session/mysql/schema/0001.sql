-- The table of onelock's session locks, version 1, for MariaDB 10.6 and later and MySQL 8.0.16 and later. Run it as a user with
-- CREATE and INSERT; it may be run again. For another table prefix replace `onelock_`.
-- The user of the services needs SELECT and UPDATE on it, and nothing else.

-- One row. `space` keeps the locks of those who share this table apart from others on the server. Numbers come from a counter in
-- the server's memory, to which `shift` is added as long as the server lives its life `life`; none is given that `ceiling` is not
-- above, and a new life starts above `ceiling`. The high bits of `ceiling` are the largest token epoch that was begun.
CREATE TABLE IF NOT EXISTS `onelock_session` (
    id TINYINT UNSIGNED NOT NULL,
    version INT UNSIGNED NOT NULL,
    space BINARY(16) NOT NULL,
    life BIGINT NOT NULL,
    shift BIGINT NOT NULL,
    ceiling BIGINT NOT NULL CHECK (ceiling >= 0),
    PRIMARY KEY (id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT IGNORE INTO `onelock_session` (id, version, space, life, shift, ceiling)
VALUES (1, 1, UNHEX(REPLACE(UUID(), '-', '')), 0, 0, 0);
