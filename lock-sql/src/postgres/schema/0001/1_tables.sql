-- The line of every lock, and where its numbers come from. {schema} is a checked identifier.
CREATE SCHEMA IF NOT EXISTS {schema};

CREATE TABLE {schema}.version (
    id  integer PRIMARY KEY CHECK (id = 1),
    version integer NOT NULL
);

-- The numbers of all names: drawing one makes no row version. See `draw` for the tables that keep it from going back.
CREATE SEQUENCE {schema}.number AS bigint;

-- No number above `ceiling` has been given. It is raised a block at a time, and that is on the disk before a number of the
-- block is given. `lot` changes whenever the sequence is set.
CREATE TABLE {schema}.block (
    id      integer PRIMARY KEY CHECK (id = 1),
    ceiling bigint NOT NULL CHECK (ceiling >= 0),
    lot     uuid   NOT NULL
) WITH (fillfactor = 10);

INSERT INTO {schema}.block (id, ceiling, lot) VALUES (1, 0, gen_random_uuid());

-- The lot that this server's sequence belongs to. Not logged, so a crash and a fail-over empty it, just where the sequence may
-- have gone back; and replication does not copy it, as it does not copy the sequence.
CREATE UNLOGGED TABLE {schema}.alive (id integer PRIMARY KEY CHECK (id = 1), lot uuid NOT NULL);

INSERT INTO {schema}.alive (id, lot) SELECT id, lot FROM {schema}.block;

-- No CHECKs here: the server reads them anew for each statement that writes. Only the functions write.
CREATE TABLE {schema}.line (
    name   text        COLLATE "C" NOT NULL, -- the encoded name
    token  bigint      NOT NULL, -- the place in the line and the fencing token
    holder bytea       NOT NULL,
    mode   text        NOT NULL, -- x, s, or p and the limit, and w and the weight where that is not 1
    held   boolean     NOT NULL,
    ends   timestamptz NOT NULL, -- when the lease ends, lock-delay included
    joined timestamptz NOT NULL,
    inbox  text        NOT NULL, -- the channel of its client
    note   text        NOT NULL,
    PRIMARY KEY (name, token),
    UNIQUE (name, holder)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
-- No further index: with one on `ends` or `held` each renewal and each promotion would write all of them anew.

-- What the verbs need to know of a busy line, so that they need not read it: a cache, which may be missing. Each change moves it
-- to a larger version, so that a backward scan of the index meets the living row first, however many dead ones an open snapshot
-- keeps. Not logged: a crash empties it, together with the commits of `line` that a crash may lose.
CREATE UNLOGGED TABLE {schema}.front (
    name       text        COLLATE "C" NOT NULL,
    version    bigint      NOT NULL, -- about the time of the change, in microseconds
    low        bigint      NOT NULL, -- no entry stands below this number
    holders    integer     NOT NULL,
    kind       text,                 -- of the holders: x, s or p
    weight     bigint,               -- theirs together, of permits
    room       bigint,               -- the smallest of their limits, of permits
    mixed      boolean,              -- whether their limits may differ
    due        timestamptz,          -- no holder's lease ends before this
    waiter     bigint,               -- the first entry that waits
    waiter_due timestamptz,          -- its lease does not end before this
    PRIMARY KEY (name, version)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- When to look next for what nobody asks for any more.
CREATE TABLE {schema}.tidying (id integer PRIMARY KEY CHECK (id = 1), next timestamptz NOT NULL) WITH (fillfactor = 10);

INSERT INTO {schema}.tidying (id, next) VALUES (1, clock_timestamp());
