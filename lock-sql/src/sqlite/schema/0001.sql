-- The line of every lock, and one row about the file itself. Times are nanoseconds of the host's boot clock.
CREATE TABLE onelock_meta (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    boot   TEXT    NOT NULL, -- the kernel's boot id that the times below belong to
    number INTEGER NOT NULL CHECK (number >= 0) -- the last fencing token given, over all names
) STRICT;

INSERT INTO onelock_meta (id, boot, number) VALUES (1, '', 0);

CREATE TABLE onelock_line (
    token  INTEGER PRIMARY KEY CHECK (token > 0), -- the place in the line and the fencing token
    name   TEXT    NOT NULL,                      -- the encoded name
    holder BLOB    NOT NULL CHECK (length(holder) = 16),
    mode   TEXT    NOT NULL,                      -- x, s, or p, the limit, and w and a weight
    held   INTEGER NOT NULL CHECK (held IN (0, 1)),
    ends   INTEGER NOT NULL,                      -- when the lease ends, lock-delay included
    joined INTEGER NOT NULL,
    delay  INTEGER NOT NULL,                      -- the lock-delay
    note   TEXT    NOT NULL
) STRICT;

CREATE INDEX onelock_line_order ON onelock_line (name, held, token);
CREATE UNIQUE INDEX onelock_line_holder ON onelock_line (name, holder);
CREATE INDEX onelock_line_ends ON onelock_line (ends);

PRAGMA application_id = 0x4F4E454C; -- "ONEL"
PRAGMA user_version = 1;
