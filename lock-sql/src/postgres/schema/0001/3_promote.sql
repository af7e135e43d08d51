-- The key of a name's lock. Two names with the same key wait for each other, no more.
CREATE FUNCTION {schema}.key_of(p_name text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT hashtextextended('{schema} ' || p_name, 0) $$;

-- For whom an answer is: a grant names its holder, every other answer says a zero and the holder.
CREATE FUNCTION {schema}.told(p_holder bytea, p_held boolean) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN p_held THEN p_holder ELSE decode('00', 'hex') || p_holder END $$;

-- Tells who listens at this channel. A commit with a notification waits for all others that have one, and fails where their queue
-- is full, as behind a session that listens and leaves a transaction open: whom nobody tells asks when it renews.
CREATE FUNCTION {schema}.tell(p_inbox text, p_what text) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
    SELECT CASE
        WHEN p_inbox <> '' AND pg_notification_queue_usage() < 0.9 THEN pg_notify(p_inbox, p_what) IS NOT NULL
    END
$$;

-- Refuses a transaction in which the verbs cannot be done, and says why.
CREATE FUNCTION {schema}.refuse_transaction() RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'onelock needs the primary, and this is a standby' USING ERRCODE = '25006';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'onelock needs transactions of READ COMMITTED' USING ERRCODE = '25001';
    END IF;
    PERFORM FROM pg_settings AS s WHERE s.name = 'default_transaction_read_only' AND s.source LIKE '%user%';
    IF FOUND THEN
        RAISE EXCEPTION 'the transactions of role % are read-only: default_transaction_read_only', session_user
            USING ERRCODE = 'OL001';
    END IF;
    RAISE EXCEPTION 'transactions are read-only: default_transaction_read_only' USING ERRCODE = '25006';
END
$$;

-- The verbs need a transaction in which each statement sees what the one before the lock did, and which may write.
CREATE FUNCTION {schema}.check_transaction() RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
    SELECT CASE
        WHEN pg_is_in_recovery() OR current_setting('transaction_isolation') <> 'read committed'
            OR current_setting('transaction_read_only')::boolean THEN {schema}.refuse_transaction()
        ELSE true
    END
$$;

-- Locks a name until the transaction ends: nobody else changes its line, but for renewals of single entries and what tidies up
-- behind leases that have ended. An advisory lock makes no row version, and is given in the order in which it was asked for.
CREATE FUNCTION {schema}.lock_name(p_name text) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
    SELECT CASE
        WHEN {schema}.check_transaction() THEN pg_advisory_xact_lock({schema}.key_of(p_name)) IS NOT NULL
    END
$$;

-- Locks several names, in one order, so that two batches never wait for each other.
CREATE FUNCTION {schema}.lock_names(p_names text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_key bigint;
    v_done text;
BEGIN
    FOR v_key IN SELECT DISTINCT {schema}.key_of(n) AS key FROM unnest(p_names) AS n ORDER BY key LOOP
        v_done := pg_advisory_xact_lock(v_key);
    END LOOP;
END
$$;

-- The limit of a permit, and its weight; NULL for another mode.
CREATE FUNCTION {schema}.limit_of(p_mode text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN left(p_mode, 1) = 'p' THEN split_part(substr(p_mode, 2), 'w', 1)::bigint END $$;

CREATE FUNCTION {schema}.weight_of(p_mode text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN left(p_mode, 1) = 'p' THEN coalesce(nullif(split_part(p_mode, 'w', 2), ''), '1')::bigint END
$$;

-- Whether an entry of this mode holds too behind those that hold.
CREATE FUNCTION {schema}.fits(p_mode text, f {schema}.front) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN f.holders = 0 THEN true
        WHEN left(p_mode, 1) <> f.kind OR p_mode = 'x' THEN false
        WHEN p_mode = 's' THEN true
        ELSE f.weight + {schema}.weight_of(p_mode) <= least(f.room, {schema}.limit_of(p_mode))
    END
$$;

-- One more holds.
CREATE FUNCTION {schema}.held_by(f {schema}.front, p_mode text, p_token bigint, p_ends timestamptz) RETURNS {schema}.front
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    v_limit bigint := {schema}.limit_of(p_mode);
BEGIN
    IF f.holders = 0 THEN
        f.low := p_token;
        f.due := NULL;
        f.kind := left(p_mode, 1);
        f.weight := 0;
        f.room := v_limit;
        f.mixed := false;
    END IF;
    f.holders := f.holders + 1;
    f.due := least(f.due, p_ends);
    IF v_limit IS NOT NULL THEN
        f.weight := f.weight + {schema}.weight_of(p_mode);
        f.mixed := f.mixed OR v_limit <> f.room;
        f.room := least(f.room, v_limit);
    END IF;
    RETURN f;
END
$$;

-- Microseconds from now; NULL stays NULL.
CREATE FUNCTION {schema}.micros_until(p_end timestamptz) RETURNS bigint
LANGUAGE sql VOLATILE
AS $$ SELECT greatest(0, extract(epoch FROM p_end - clock_timestamp()) * 1000000)::bigint $$;

-- Keeps what is known of a line. Where nothing was kept, only if it is worth it.
CREATE FUNCTION {schema}.keep(f {schema}.front, p_worth boolean) RETURNS {schema}.front
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_before bigint := f.version;
BEGIN
    IF v_before = 0 AND NOT p_worth THEN
        RETURN f;
    END IF;
    f.version := greatest(v_before + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    IF v_before = 0 THEN
        INSERT INTO {schema}.front SELECT f.*;
    ELSE
        -- Where it was tidied away meanwhile nothing is kept.
        UPDATE {schema}.front AS t SET version = f.version, low = f.low, holders = f.holders, kind = f.kind, weight = f.weight,
            room = f.room, mixed = f.mixed, due = f.due, waiter = f.waiter, waiter_due = f.waiter_due
        WHERE t.name = f.name AND t.version = v_before;
    END IF;
    RETURN f;
END
$$;

-- Finds the first entry that waits, from this number on, and promotes and tells whoever holds now.
--
-- A renewal may be under way, as it does not lock the name: so what has expired is deleted only if it still has, and the next
-- statement looks again.
CREATE FUNCTION {schema}.promote(f {schema}.front, p_from bigint) RETURNS {schema}.front
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_mode text;
    v_holder bytea;
    v_inbox text;
    v_ends timestamptz;
    v_done text;
BEGIN
    LOOP
        SELECT l.token, l.mode, l.ends INTO f.waiter, v_mode, f.waiter_due
        FROM {schema}.line AS l WHERE l.name = f.name AND l.token >= p_from AND NOT l.held ORDER BY l.token LIMIT 1;
        EXIT WHEN f.waiter IS NULL;
        p_from := f.waiter;
        IF f.waiter_due <= clock_timestamp() THEN
            DELETE FROM {schema}.line AS l
            WHERE l.name = f.name AND l.token = f.waiter AND l.ends <= clock_timestamp();
            CONTINUE;
        END IF;
        EXIT WHEN NOT {schema}.fits(v_mode, f);
        UPDATE {schema}.line AS l SET held = true
        WHERE l.name = f.name AND l.token = f.waiter AND l.ends > clock_timestamp()
        RETURNING l.holder, l.inbox, l.ends INTO v_holder, v_inbox, v_ends;
        CONTINUE WHEN v_holder IS NULL;
        f := {schema}.held_by(f, v_mode, f.waiter, v_ends);
        v_done := {schema}.tell(v_inbox, 'h' || encode(v_holder, 'hex') || f.waiter);
    END LOOP;
    RETURN f;
END
$$;

-- An entry of the line that this was kept of has been deleted: promotes and tells whoever holds then.
CREATE FUNCTION {schema}.leave(f {schema}.front, p_token bigint, p_held boolean, p_mode text)
RETURNS {schema}.front
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF p_held THEN
        f.holders := f.holders - 1;
        f.weight := f.weight - {schema}.weight_of(p_mode);
        IF f.holders = 0 THEN
            f.kind := NULL;
            f.due := NULL;
        ELSIF f.mixed THEN
            SELECT min({schema}.limit_of(l.mode)), max({schema}.limit_of(l.mode)) > min({schema}.limit_of(l.mode))
            INTO f.room, f.mixed FROM {schema}.line AS l
            WHERE l.name = f.name AND l.token >= f.low AND l.token < coalesce(f.waiter, 9223372036854775807) AND l.held;
        END IF;
    ELSIF f.waiter IS DISTINCT FROM p_token THEN
        RETURN f;
    END IF;
    IF f.waiter IS NOT NULL THEN
        f := {schema}.promote(f, f.waiter);
    END IF;
    RETURN {schema}.keep(f, false);
END
$$;

-- Drops what has expired, if it matters who holds now, promotes and tells. The name is locked; its entry `p_token`, if it is not
-- NULL, has just been deleted.
CREATE FUNCTION {schema}.settle(
    p_name text, p_token bigint DEFAULT NULL, p_held boolean DEFAULT NULL, p_mode text DEFAULT NULL
) RETURNS {schema}.front
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    f {schema}.front;
    v_from bigint;
    v_first bigint;
    v_entries bigint;
    v_read bigint := pg_stat_get_xact_blocks_fetched('{schema}.line'::regclass);
BEGIN
    SELECT t.* INTO f FROM {schema}.front AS t WHERE t.name = p_name ORDER BY t.version DESC LIMIT 1;
    IF NOT FOUND THEN
        f.name := p_name;
        f.version := 0;
        f.low := 0;
        v_from := 0;
    ELSIF coalesce(least(f.due, f.waiter_due) > clock_timestamp(), true) THEN
        RETURN CASE WHEN p_token IS NULL THEN f ELSE {schema}.leave(f, p_token, p_held, p_mode) END;
    ELSE
        v_from := f.waiter;
    END IF;
    LOOP
        SELECT count(*) FILTER (WHERE l.held), left(max(l.mode) FILTER (WHERE l.held), 1),
            sum({schema}.weight_of(l.mode)) FILTER (WHERE l.held), min({schema}.limit_of(l.mode)) FILTER (WHERE l.held),
            max({schema}.limit_of(l.mode)) FILTER (WHERE l.held) > min({schema}.limit_of(l.mode)) FILTER (WHERE l.held),
            min(l.ends) FILTER (WHERE l.held), min(l.token) FILTER (WHERE l.held), count(*)
        INTO f.holders, f.kind, f.weight, f.room, f.mixed, f.due, v_first, v_entries
        FROM {schema}.line AS l
        WHERE l.name = p_name AND l.token >= f.low AND l.token < coalesce(f.waiter, 9223372036854775807);
        EXIT WHEN coalesce(f.due > clock_timestamp(), true);
        DELETE FROM {schema}.line AS l
        WHERE l.name = p_name AND l.token >= f.low AND l.token < coalesce(f.waiter, 9223372036854775807)
            AND l.held AND l.ends <= clock_timestamp();
    END LOOP;
    f.low := coalesce(v_first, f.low);
    IF v_from IS NOT NULL AND (v_entries > 0 OR v_from > 0) THEN
        f := {schema}.promote(f, v_from);
    END IF;
    -- A short line takes many pages to read where an open snapshot keeps the dead rows of those that have left.
    v_read := pg_stat_get_xact_blocks_fetched('{schema}.line'::regclass) - v_read;
    RETURN {schema}.keep(f, f.waiter IS NOT NULL OR v_entries > 16 OR v_read > 32);
END
$$;

-- Clears away what expired under names nobody asks for, and what is kept of them. It looks through the tables, so it is done
-- rarely: for at most a hundredth of the time, however large they have become.
CREATE FUNCTION {schema}.tidy() RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = on
AS $$
DECLARE
    v_begun timestamptz := clock_timestamp();
    v_old bigint := (extract(epoch FROM v_begun - interval '10 s') * 1000000)::bigint;
BEGIN
    -- A day ahead: the clock was stepped back.
    PERFORM FROM {schema}.tidying AS t
    WHERE t.id = 1 AND t.next NOT BETWEEN v_begun AND v_begun + interval '1 day' FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    DELETE FROM {schema}.line AS l USING (
        SELECT d.name, d.token FROM {schema}.line AS d
        WHERE d.ends < v_begun - interval '1 s' LIMIT 2000 FOR UPDATE SKIP LOCKED
    ) AS dead
    WHERE l.name = dead.name AND l.token = dead.token;
    DELETE FROM {schema}.front AS f USING (
        SELECT d.name, d.version FROM {schema}.front AS d
        WHERE d.version < v_old AND coalesce(least(d.due, d.waiter_due) < v_begun - interval '10 s', true)
        LIMIT 2000 FOR UPDATE SKIP LOCKED
    ) AS idle
    WHERE f.name = idle.name AND f.version = idle.version;
    UPDATE {schema}.tidying AS t
    SET next = clock_timestamp()
        + least(interval '1 day', greatest(interval '1 s', 100 * (clock_timestamp() - v_begun)))
    WHERE t.id = 1;
END
$$;
