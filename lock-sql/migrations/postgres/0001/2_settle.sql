-- The bucket of a name: the same on every server, for ever.
CREATE FUNCTION {schema}.bucket_of(p_name text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT ('x' || substr(md5(p_name), 1, 4))::bit(16)::integer & 1023 $$;

-- For whom an answer is: a grant names its holder, every other answer says a zero and the holder, so that no altered byte
-- turns the one into the other.
CREATE FUNCTION {schema}.told(p_holder bytea, p_held boolean) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN p_held THEN p_holder ELSE '\x00'::bytea || p_holder END $$;

-- Every verb begins with a statement that locks the name's counter: nobody else acts on the name until the transaction ends,
-- and every statement after it sees what the one before did. (But for a release that only gives a lock to the next one.) That
-- needs a snapshot for each statement, and the primary.
CREATE FUNCTION {schema}.refuse_transaction() RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'onelock needs the primary, and this is a standby' USING ERRCODE = '25006';
    END IF;
    RAISE EXCEPTION 'onelock needs transactions of READ COMMITTED' USING ERRCODE = '25001';
END
$$;

-- Locks a name, and gives its bucket.
--
-- Here and below functions are called by assignment to what nobody looks at, as `PERFORM` makes a query of a call. But a call
-- costs, too, about as much as a small query: taking a lock that nobody else wants takes none.
CREATE FUNCTION {schema}.lock_name(p_name text) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_bucket integer := {schema}.bucket_of(p_name);
    v_done text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
        v_done := {schema}.refuse_transaction();
    END IF;
    PERFORM FROM {schema}.counter AS c WHERE c.id = v_bucket FOR UPDATE;
    IF NOT FOUND THEN
        v_done := {schema}.recover(ARRAY[v_bucket]);
    END IF;
    RETURN v_bucket;
END
$$;

-- Locks several names, in one order, so that two batches never wait for each other.
CREATE FUNCTION {schema}.lock_names(p_names text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_buckets integer[] := ARRAY(SELECT DISTINCT {schema}.bucket_of(n) AS id FROM unnest(p_names) AS n ORDER BY id);
    v_locked bigint;
    v_done text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
        v_done := {schema}.refuse_transaction();
    END IF;
    PERFORM FROM {schema}.counter AS c WHERE c.id = ANY (v_buckets) ORDER BY c.id FOR UPDATE;
    GET DIAGNOSTICS v_locked = ROW_COUNT;
    IF v_locked < cardinality(v_buckets) THEN
        v_done := {schema}.recover(v_buckets);
    END IF;
END
$$;

-- Makes the counters that a crash of the server took, and locks them.
CREATE FUNCTION {schema}.recover(p_buckets integer[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    -- Waits for whoever does the same.
    INSERT INTO {schema}.counter (id, number, ceiling)
    SELECT b.id, b.number, b.number FROM {schema}.bucket AS b WHERE b.id = ANY (p_buckets) ORDER BY b.id
    ON CONFLICT DO NOTHING;
    PERFORM FROM {schema}.counter AS c WHERE c.id = ANY (p_buckets) ORDER BY c.id FOR UPDATE;
END
$$;

-- Tells a client that an entry of its holds now. A notification makes every commit of the database that has one wait for the
-- others: only where there is somebody to tell.
CREATE FUNCTION {schema}.tell(p_inbox text, p_holder bytea, p_token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_done text;
BEGIN
    IF p_inbox <> '' THEN
        v_done := pg_notify(p_inbox, 'h' || encode(p_holder, 'hex') || p_token);
    END IF;
END
$$;

-- Drops what has expired, promotes and tells whoever holds now, and describes the front of the line and this holder's entry.
-- Without a holder it only promotes.
CREATE FUNCTION {schema}.settle(
    p_name text, p_holder bytea, OUT holders integer, OUT first_mode text, OUT earliest timestamptz, OUT waiter bigint,
    OUT own bigint, OUT own_held boolean
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_first bigint;
    v_held boolean;
    v_end timestamptz;
    v_inbox text;
    v_holder bytea;
    v_done text;
BEGIN
    -- Mostly the first entry tells: there is none, or it holds or is to hold alone. Who holds stands before all who wait.
    <<short>>
    BEGIN
        SELECT l.token, l.held, l.mode, l.ends INTO v_first, v_held, first_mode, earliest
        FROM {schema}.line AS l WHERE l.name = p_name ORDER BY l.token LIMIT 1;
        IF v_first IS NULL THEN
            holders := 0;
            RETURN;
        END IF;
        EXIT short WHEN first_mode <> 'x' OR earliest <= clock_timestamp();
        IF NOT v_held THEN
            UPDATE {schema}.line AS l SET held = true WHERE l.name = p_name AND l.token = v_first
            RETURNING l.inbox, l.holder INTO v_inbox, v_holder;
            v_done := {schema}.tell(v_inbox, v_holder, v_first);
        END IF;
        IF p_holder IS NULL THEN
            RETURN;
        END IF;
        SELECT l.token, l.held, l.ends INTO own, own_held, v_end
        FROM {schema}.line AS l WHERE l.name = p_name AND l.holder = p_holder;
        EXIT short WHEN v_end <= clock_timestamp();
        SELECT l.token INTO waiter
        FROM {schema}.line AS l WHERE l.name = p_name AND l.token > v_first AND l.ends > clock_timestamp()
        ORDER BY l.token LIMIT 1;
        holders := 1;
        RETURN;
    END short;
    SELECT s.* INTO holders, first_mode, earliest, waiter, own, own_held FROM {schema}.settle_all(p_name, p_holder) AS s;
END
$$;

-- The same for a line of any kind.
CREATE FUNCTION {schema}.settle_all(
    p_name text, p_holder bytea, OUT holders integer, OUT first_mode text, OUT earliest timestamptz, OUT waiter bigint,
    OUT own bigint, OUT own_held boolean
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_end timestamptz;
    v_mode text;
    v_room bigint;
    v_stop bigint;
    v_entry record;
BEGIN
    LOOP
        SELECT count(*) FILTER (WHERE l.held), max(l.mode) FILTER (WHERE l.held), min(l.ends) FILTER (WHERE l.held),
            min(l.token) FILTER (WHERE NOT l.held), min(l.token) FILTER (WHERE l.holder = p_holder),
            bool_or(l.held) FILTER (WHERE l.holder = p_holder), min(l.ends)
        INTO holders, first_mode, earliest, waiter, own, own_held, v_end
        FROM {schema}.line AS l WHERE l.name = p_name;
        IF v_end <= clock_timestamp() THEN
            DELETE FROM {schema}.line AS l WHERE l.name = p_name AND l.ends <= clock_timestamp();
            CONTINUE;
        END IF;
        IF waiter IS NULL OR (holders > 0 AND first_mode = 'x') THEN
            RETURN;
        END IF;
        SELECT l.mode INTO v_mode FROM {schema}.line AS l WHERE l.name = p_name AND l.token = waiter;
        v_room := CASE
            WHEN first_mode <> v_mode THEN 0
            WHEN v_mode = 'x' THEN 1 - holders
            WHEN v_mode = 's' THEN NULL
            ELSE substr(v_mode, 2)::bigint - holders
        END;
        IF v_room <= 0 THEN
            RETURN;
        END IF;
        IF v_mode = 'x' THEN
            v_stop := waiter + 1;
        ELSE
            SELECT l.token INTO v_stop
            FROM {schema}.line AS l WHERE l.name = p_name AND NOT l.held AND l.mode <> v_mode ORDER BY l.token LIMIT 1;
        END IF;
        FOR v_entry IN
            UPDATE {schema}.line AS l SET held = true
            WHERE l.name = p_name AND l.token IN (
                SELECT w.token FROM {schema}.line AS w
                WHERE w.name = p_name AND NOT w.held AND w.token < coalesce(v_stop, 9223372036854775807)
                ORDER BY w.token LIMIT v_room
            )
            RETURNING l.token, l.holder, l.inbox
        LOOP
            PERFORM {schema}.tell(v_entry.inbox, v_entry.holder, v_entry.token);
        END LOOP;
        IF p_holder IS NULL THEN
            RETURN;
        END IF;
    END LOOP;
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

-- Whether this transaction's commit is answered only when it is on the disk, and on synchronous standbys, whatever the
-- session says; or at once. What is committed at once reaches the disk in order, before all that is committed after it.
CREATE FUNCTION {schema}.commit_durably(p_durably boolean) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_done text;
BEGIN
    IF NOT p_durably THEN
        v_done := set_config('synchronous_commit', 'off', true);
    ELSIF current_setting('synchronous_commit') IN ('off', 'local') THEN
        v_done := set_config('synchronous_commit', 'on', true);
    END IF;
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

-- Draws the next number of a bucket whose counter a crash of the server may have taken.
CREATE FUNCTION {schema}.recover_and_draw(p_bucket integer, OUT number bigint, OUT ceiling bigint)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_done text := {schema}.recover(ARRAY[p_bucket]);
BEGIN
    UPDATE {schema}.counter AS c SET number = c.number + 1, ceiling = greatest(c.ceiling, c.number + 1)
    WHERE c.id = p_bucket RETURNING c.number, c.ceiling INTO number, ceiling;
END
$$;

-- Opens the next block of numbers, behind this one. To be committed durably before the name is unlocked.
CREATE FUNCTION {schema}.reserve(p_bucket integer, p_last bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_ceiling bigint := CASE
        WHEN p_last > 9223372036854775807 - 1000 THEN 9223372036854775807 ELSE p_last + 1000
    END;
BEGIN
    UPDATE {schema}.bucket AS b SET number = v_ceiling WHERE b.id = p_bucket AND b.number < v_ceiling;
    UPDATE {schema}.counter AS c SET ceiling = v_ceiling WHERE c.id = p_bucket;
END
$$;
