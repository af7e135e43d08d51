-- Whether this transaction's commit is answered only when it is on the disk, and on synchronous standbys, whatever the
-- session says; or at once. What is committed at once reaches the disk in order, before all that is committed after it.
--
-- Functions of one expression are written in SQL: the server inlines them. Here and below functions are called by assignment to a
-- variable nobody reads, as `PERFORM` makes a query of a call.
CREATE FUNCTION {schema}.commit_durably(p_durably boolean) RETURNS text
LANGUAGE sql VOLATILE
AS $$
    SELECT CASE
        WHEN NOT p_durably THEN set_config('synchronous_commit', 'off', true)
        WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
            set_config('synchronous_commit', 'on', true)
    END
$$;

-- Has this transaction's commit wait until the disk, and synchronous standbys, have everything that was committed before.
CREATE FUNCTION {schema}.flush() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_done text := {schema}.commit_durably(true);
BEGIN
    -- A commit that logged nothing waits for nothing.
    v_done := pg_logical_emit_message(true, 'onelock', '');
END
$$;

-- A number above the ceiling, or of a sequence that may have gone back: opens the next block. Whether the number, drawn while
-- the block had this lot, may be given. If not it is to be drawn again: the sequence was set meanwhile, or is set here.
CREATE FUNCTION {schema}.open_block(p_number bigint, p_lot uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_size bigint := 100000;
    v_most bigint := 9223372036854775807;
    v_ceiling bigint;
    v_lot uuid;
    v_last bigint;
    v_done text;
BEGIN
    -- Others see the block only when this is on the disk.
    v_done := {schema}.commit_durably(true);
    SELECT b.ceiling, b.lot INTO v_ceiling, v_lot FROM {schema}.block AS b WHERE b.id = 1 FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the row of {schema}.block is gone: numbers cannot go on above the last' USING ERRCODE = '55000';
    END IF;
    PERFORM FROM {schema}.alive AS a WHERE a.id = 1 AND a.lot = v_lot;
    IF FOUND THEN
        IF v_lot IS DISTINCT FROM p_lot THEN
            RETURN false;
        END IF;
        IF p_number > v_ceiling THEN
            UPDATE {schema}.block AS b
            SET ceiling = CASE WHEN p_number > v_most - v_size THEN v_most ELSE p_number + v_size END
            WHERE b.id = 1;
        END IF;
        RETURN true;
    END IF;
    SELECT n.last_value INTO v_last FROM {schema}.number AS n;
    v_done := {schema}.set_number(greatest(v_ceiling, v_last));
    -- The tables may have been copied from another server: then this describes lines that were here before.
    DELETE FROM {schema}.front;
    RETURN false;
END
$$;

-- Sets the sequence, behind which a block of its own begins. The row of `block` is locked, and `p_number` is not below its
-- ceiling: so every number that was drawn before and is not below is drawn again.
CREATE FUNCTION {schema}.set_number(p_number bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_lot uuid := gen_random_uuid();
    v_done bigint;
BEGIN
    IF p_number > 0 THEN
        v_done := setval('{schema}.number', p_number);
    END IF;
    UPDATE {schema}.block AS b SET ceiling = p_number, lot = v_lot WHERE b.id = 1;
    INSERT INTO {schema}.alive (id, lot) VALUES (1, v_lot) ON CONFLICT (id) DO UPDATE SET lot = v_lot;
END
$$;

-- The next number, whose high 15 bits are the token epoch. To be called with the name locked: so the numbers of a name grow.
-- Without an epoch the sequence's own is taken.
CREATE FUNCTION {schema}.draw(p_epoch integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_number bigint;
    v_ceiling bigint;
    v_lot uuid;
    v_done text;
BEGIN
    LOOP
        -- The block is read before the number is drawn.
        SELECT nextval('{schema}.number'), b.ceiling, b.lot INTO v_number, v_ceiling, v_lot
        FROM {schema}.block AS b JOIN {schema}.alive AS a ON a.id = b.id AND a.lot = b.lot WHERE b.id = 1;
        IF v_number <= v_ceiling OR {schema}.open_block(v_number, v_lot) THEN
            -- The block's epoch has begun, too, where the sequence was set back.
            IF greatest(p_epoch, v_ceiling >> 48) > v_number >> 48 THEN
                v_done := {schema}.begin_epoch(greatest(p_epoch, v_ceiling >> 48)::integer);
            ELSIF p_epoch < v_number >> 48 THEN
                RAISE EXCEPTION 'the token epoch % is smaller than %', p_epoch, v_number >> 48
                    USING ERRCODE = 'OL002', DETAIL = p_epoch || ' ' || (v_number >> 48);
            ELSE
                RETURN v_number;
            END IF;
        END IF;
    END LOOP;
END
$$;

-- Numbers from now on carry at least this token epoch; their low bits go on. The block may be of a later one than the sequence, which
-- the end of a restore sets back.
CREATE FUNCTION {schema}.begin_epoch(p_epoch integer) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_last bigint;
    v_ceiling bigint;
    v_done text := {schema}.commit_durably(true);
BEGIN
    SELECT b.ceiling INTO v_ceiling FROM {schema}.block AS b WHERE b.id = 1 FOR UPDATE;
    SELECT n.last_value INTO v_last FROM {schema}.number AS n;
    IF v_last >> 48 < p_epoch THEN
        v_last := greatest(v_ceiling, v_last);
        v_done := {schema}.set_number(greatest(v_last, (p_epoch::bigint << 48) | (v_last & 281474976710655)));
    END IF;
END
$$;

-- Later numbers are larger than this one. Only an acquire begins a token epoch.
CREATE FUNCTION {schema}.raise_number(p_number bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_last bigint := {schema}.draw(NULL);
    v_ceiling bigint;
    v_done text;
BEGIN
    IF v_last >= p_number THEN
        RETURN;
    END IF;
    IF p_number >> 48 > v_last >> 48 THEN
        RAISE EXCEPTION 'the number % is of a later token epoch than %', p_number, v_last >> 48
            USING ERRCODE = 'OL003';
    END IF;
    SELECT b.ceiling INTO v_ceiling FROM {schema}.block AS b WHERE b.id = 1 FOR UPDATE;
    SELECT n.last_value INTO v_last FROM {schema}.number AS n;
    IF p_number > v_ceiling THEN
        v_done := {schema}.set_number(p_number);
    ELSE
        -- Within a block numbers are left out one by one: setting the sequence would go back behind who draws just then.
        PERFORM nextval('{schema}.number') FROM generate_series(1, p_number - v_last);
    END IF;
END
$$;
