-- What session locks keep in a database: the source of their numbers, and a mark that tells a crash.
CREATE SCHEMA IF NOT EXISTS {schema};

-- One counter for all names. A number is drawn by whoever holds its lock, so the numbers of a name grow.
CREATE SEQUENCE {schema}.number AS bigint;

-- Empty after a crash, a fail-over or a restore, and only then: it is not in the write-ahead log.
CREATE UNLOGGED TABLE {schema}.alive (since timestamptz NOT NULL);
INSERT INTO {schema}.alive VALUES (clock_timestamp());

CREATE FUNCTION {schema}.onelock_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';

-- Every session calls it before it draws a number. A sequence that went back by a crash is lifted by more than a server can
-- have drawn without having written it down: a number costs it three bytes of log, and 2^30 of them are more than the
-- largest buffers and the largest file of that log together. No session outlives a crash, so nobody draws before the lift,
-- and whoever sees the mark sees it because the lift is on the disk.
CREATE FUNCTION {schema}.begin_session() RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM {schema}.alive) THEN
        RETURN true;
    END IF;
    PERFORM set_config('synchronous_commit', 'on', true);
    LOCK TABLE {schema}.alive IN EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM {schema}.alive) THEN
        PERFORM setval('{schema}.number', nextval('{schema}.number') + 1073741824);
        INSERT INTO {schema}.alive VALUES (clock_timestamp());
    END IF;
    RETURN true;
END
$$;

REVOKE ALL ON FUNCTION {schema}.begin_session() FROM PUBLIC;
