-- The line of every lock, and the counters its numbers come from. {schema} is a checked identifier.
CREATE SCHEMA IF NOT EXISTS {schema};

CREATE TABLE {schema}.version (
    id  integer PRIMARY KEY CHECK (id = 1),
    version integer NOT NULL
);

-- A fixed number of counters, each for the names of one bucket: numbers of a name only ever grow, and millions of names
-- leave nothing behind. No number above `number` has been given: it is raised by a block at a time, and that is on the disk
-- before a number of the block is given.
CREATE TABLE {schema}.bucket (
    id     integer PRIMARY KEY,
    number bigint  NOT NULL CHECK (number >= 0)
) WITH (fillfactor = 10);

INSERT INTO {schema}.bucket (id, number) SELECT id, 0 FROM generate_series(0, 1023) AS id;

-- The last number given, and a copy of the bucket's. A row is also the lock that its names' verbs take first. Not logged:
-- so it costs no disk, and the server empties it when it recovers from a crash, where the last commits may be lost. What was
-- given then is not known any more, and the counter goes on above its block.
CREATE UNLOGGED TABLE {schema}.counter (
    id      integer PRIMARY KEY,
    number  bigint  NOT NULL,
    ceiling bigint  NOT NULL
) WITH (fillfactor = 10);

INSERT INTO {schema}.counter (id, number, ceiling) SELECT id, number, number FROM {schema}.bucket;

-- No CHECKs here and on the counters: the server reads them anew for each statement that writes, which was a fifteenth of
-- what a cycle costs it. Only the functions write.
CREATE TABLE {schema}.line (
    name   text        COLLATE "C" NOT NULL, -- the encoded name
    token  bigint      NOT NULL, -- the place in the line and the fencing token
    holder bytea       NOT NULL,
    mode   text        NOT NULL, -- x, s, or p and the limit
    held   boolean     NOT NULL,
    ends   timestamptz NOT NULL, -- when the lease ends, lock-delay included
    joined timestamptz NOT NULL,
    inbox  text        NOT NULL, -- the channel of its client
    note   text        NOT NULL,
    PRIMARY KEY (name, token),
    UNIQUE (name, holder)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
-- No further index: with one on `ends` or `held` each renewal and each promotion would write all of them anew.
