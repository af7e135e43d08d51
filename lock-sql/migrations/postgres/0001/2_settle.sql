-- The bucket of a name: the same on every server, for ever.
CREATE FUNCTION {schema}.bucket_of(p_name text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT ('x' || substr(md5(p_name), 1, 4))::bit(16)::integer & 1023 $$;

-- Every verb's first statement: nobody else acts on this name until the transaction ends, and every statement after it
-- sees what the one before did. That needs the snapshot per statement of READ COMMITTED.
CREATE FUNCTION {schema}.lock_name(p_name text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'onelock needs transactions of READ COMMITTED' USING ERRCODE = '25001';
    END IF;
    PERFORM FROM {schema}.bucket AS b WHERE b.id = {schema}.bucket_of(p_name) FOR UPDATE;
END
$$;

-- The same for several names, in one order, so that two batches never wait for each other.
CREATE FUNCTION {schema}.lock_names(p_names text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'onelock needs transactions of READ COMMITTED' USING ERRCODE = '25001';
    END IF;
    PERFORM FROM {schema}.bucket AS b
    WHERE b.id = ANY (ARRAY(SELECT {schema}.bucket_of(n) FROM unnest(p_names) AS n))
    ORDER BY b.id FOR UPDATE;
END
$$;

-- Drops what has expired, promotes and tells whoever holds now, and describes the front of the line.
CREATE FUNCTION {schema}.settle(
    p_name text, OUT holders integer, OUT first_mode text, OUT earliest timestamptz, OUT waiter bigint
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_mode text;
    v_room bigint;
    v_stop bigint;
    v_entry record;
BEGIN
    DELETE FROM {schema}.line AS l WHERE l.name = p_name AND l.ends <= clock_timestamp();
    SELECT l.token, l.mode INTO waiter, v_mode
    FROM {schema}.line AS l WHERE l.name = p_name AND NOT l.held ORDER BY l.token LIMIT 1;
    -- Who holds stands before all who wait.
    SELECT count(*), max(l.mode), min(l.ends) INTO holders, first_mode, earliest
    FROM {schema}.line AS l WHERE l.name = p_name AND l.token < coalesce(waiter, 9223372036854775807);
    IF waiter IS NULL THEN
        RETURN;
    END IF;
    v_room := CASE
        WHEN first_mode IS NOT NULL AND first_mode <> v_mode THEN 0
        WHEN v_mode = 'x' THEN 1 - holders
        WHEN v_mode = 's' THEN NULL
        ELSE substr(v_mode, 2)::bigint - holders
    END;
    IF v_room <= 0 THEN
        RETURN;
    END IF;
    SELECT l.token INTO v_stop
    FROM {schema}.line AS l WHERE l.name = p_name AND NOT l.held AND l.mode <> v_mode ORDER BY l.token LIMIT 1;
    FOR v_entry IN
        UPDATE {schema}.line AS l SET held = true
        WHERE l.name = p_name AND l.token IN (
            SELECT w.token FROM {schema}.line AS w
            WHERE w.name = p_name AND NOT w.held AND (v_stop IS NULL OR w.token < v_stop)
            ORDER BY w.token LIMIT v_room
        )
        RETURNING l.token, l.holder, l.inbox
    LOOP
        -- A notification makes every commit of the database that has one wait for the others: only where there is
        -- somebody to tell.
        IF v_entry.inbox <> '' THEN
            PERFORM pg_notify(v_entry.inbox, 'h' || encode(v_entry.holder, 'hex') || v_entry.token);
        END IF;
    END LOOP;
    waiter := (SELECT l.token FROM {schema}.line AS l WHERE l.name = p_name AND NOT l.held ORDER BY l.token LIMIT 1);
    SELECT count(*), max(l.mode), min(l.ends) INTO holders, first_mode, earliest
    FROM {schema}.line AS l WHERE l.name = p_name AND l.token < coalesce(waiter, 9223372036854775807);
END
$$;

-- Clears away some of what has expired under any name. It looks through the table, which is what lives now.
CREATE FUNCTION {schema}.sweep() RETURNS void
LANGUAGE sql VOLATILE SET enable_seqscan = on SET jit = off
AS $$
    DELETE FROM {schema}.line AS l USING (
        SELECT d.name, d.token FROM {schema}.line AS d
        WHERE d.ends < clock_timestamp() - interval '1 second'
        LIMIT 200 FOR UPDATE SKIP LOCKED
    ) AS dead
    WHERE l.name = dead.name AND l.token = dead.token
$$;

-- Whether an entry of this mode holds too behind so many holders of that mode.
CREATE FUNCTION {schema}.fits(p_mode text, p_holders integer, p_first text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN p_holders = 0 THEN true
        WHEN p_mode <> p_first OR p_mode = 'x' THEN false
        WHEN p_mode = 's' THEN true
        ELSE p_holders < substr(p_mode, 2)::bigint
    END
$$;

-- Microseconds from now; NULL stays NULL.
CREATE FUNCTION {schema}.micros_until(p_end timestamptz) RETURNS bigint
LANGUAGE sql VOLATILE
AS $$ SELECT greatest(0, extract(epoch FROM p_end - clock_timestamp()) * 1000000)::bigint $$;

-- What joins or renews is on the disk, and on synchronous standbys, before it is answered, whatever the session says.
CREATE FUNCTION {schema}.commit_durably() RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;
