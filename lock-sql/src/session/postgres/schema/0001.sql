-- What session locks keep in a database: the source of their numbers, and a mark that tells a crash.
CREATE SCHEMA IF NOT EXISTS {schema};

-- One counter for all names. A number is drawn by whoever holds its lock, so the numbers of a name grow. Its high 15 bits are the
-- token epoch, and what it says is the largest that was begun: who draws a number of a larger epoch than its own has no lock.
CREATE SEQUENCE {schema}.number AS bigint;

-- Empty after a crash, a fail-over or a restore, and only then: it is not in the write-ahead log. The counter's epoch is on the disk.
CREATE UNLOGGED TABLE {schema}.alive (since timestamptz NOT NULL, epoch bigint NOT NULL);
INSERT INTO {schema}.alive VALUES (clock_timestamp(), 0);

CREATE FUNCTION {schema}.onelock_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';

-- Every session calls it before it draws a number, and again before it draws the first of a larger token epoch. A sequence that
-- went back by a crash is lifted by more than a server can have drawn without having written it down: a number costs it three
-- bytes of log, and 2^30 of them are more than the largest buffers and the largest file of that log together. No session
-- outlives a crash, so nobody draws before the lift, and whoever sees the mark sees it because the lift is on the disk. An epoch
-- begins as far above the last number: no two numbers differ in the epoch alone, whoever draws meanwhile.
CREATE FUNCTION {schema}.begin_session(p_epoch integer) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_number bigint;
BEGIN
    IF EXISTS (SELECT FROM {schema}.alive AS a WHERE a.epoch >= p_epoch) THEN
        RETURN true;
    END IF;
    PERFORM set_config('synchronous_commit', 'on', true);
    LOCK TABLE {schema}.alive IN EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM {schema}.alive AS a WHERE a.epoch >= p_epoch) THEN
        v_number := nextval('{schema}.number') + 1073741824;
        IF v_number >> 48 < p_epoch THEN
            v_number := (p_epoch::bigint << 48) | (v_number & 281474976710655);
        END IF;
        PERFORM setval('{schema}.number', v_number);
        DELETE FROM {schema}.alive;
        INSERT INTO {schema}.alive VALUES (clock_timestamp(), v_number >> 48);
    END IF;
    RETURN true;
END
$$;

REVOKE ALL ON FUNCTION {schema}.begin_session(integer) FROM PUBLIC;
