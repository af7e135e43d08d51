-- Plain index scans only, here and in every verb that writes: they mark what is dead on the way, so that a lock taken a
-- thousand times between two vacuums is found as fast as at first.
--
-- token: NULL where there is no entry. retry: microseconds, for the first waiter or where there is no entry. whose: as
-- {schema}.told says it. bell: of an entry that was made with p_bell, held by this session from here on. ahead: the bell
-- right ahead, to be waited for, as there is no inbox then. Who is next has none: telling it wakes few, or somebody else has
-- what it is to be told by.
CREATE FUNCTION {schema}.acquire(
    p_name text, p_holder bytea, p_mode text, p_lease bigint, p_waiter_lease bigint, p_delay bigint,
    p_queue boolean, p_inbox text, p_note text, p_bell boolean, p_durable boolean,
    OUT token bigint, OUT retry bigint, OUT whose bytea, OUT bell bigint, OUT ahead bigint
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_bucket integer := {schema}.bucket_of(p_name);
    v_number bigint;
    v_ceiling bigint;
    v_first bigint;
    v_first_mode text;
    v_first_held boolean;
    v_first_ends timestamptz;
    v_last bigint;
    v_last_ends timestamptz;
    v_front record;
    v_held boolean := true;
    v_now timestamptz;
    v_done text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
        v_done := {schema}.refuse_transaction();
    END IF;
    IF p_bell THEN
        -- Where many join, in the order in which they come: whoever waits for a row may be overtaken by who comes just when it is
        -- free. Nobody has the bell of number zero.
        v_done := pg_advisory_xact_lock({schema}.bell(p_name, 0));
    END IF;
    -- Locks the name and draws its next number at once; a number that is not needed is left out.
    UPDATE {schema}.counter AS c SET number = c.number + 1, ceiling = greatest(c.ceiling, c.number + 1)
    WHERE c.id = v_bucket RETURNING c.number, c.ceiling INTO v_number, v_ceiling;
    IF NOT FOUND THEN
        SELECT d.number, d.ceiling INTO v_number, v_ceiling FROM {schema}.recover_and_draw(v_bucket) AS d;
    END IF;
    SELECT l.token, l.mode, l.held, l.ends INTO v_first, v_first_mode, v_first_held, v_first_ends
    FROM {schema}.line AS l WHERE l.name = p_name ORDER BY l.token LIMIT 1;
    v_now := clock_timestamp();
    IF v_first IS NOT NULL THEN
        SELECT l.token, l.ends, (SELECT o.token FROM {schema}.line AS o WHERE o.name = p_name AND o.holder = p_holder)
        INTO v_last, v_last_ends, token
        FROM {schema}.line AS l WHERE l.name = p_name ORDER BY l.token DESC LIMIT 1;
        IF token IS NULL AND v_first_held AND v_first_mode = 'x' AND least(v_first_ends, v_last_ends) > v_now THEN
            -- Mostly somebody holds it alone, and whoever came last is still there: that settles nothing.
            v_held := false;
            IF NOT p_queue OR v_last = v_first THEN
                retry := {schema}.micros_until(v_first_ends);
            END IF;
        ELSE
            v_front := {schema}.settle(p_name, p_holder);
            token := v_front.own;
            v_held := coalesce(
                v_front.own_held,
                v_front.waiter IS NULL AND {schema}.fits(p_mode, v_front.holders, v_front.first_mode)
            );
            IF NOT v_held AND (v_front.waiter IS NULL OR v_front.waiter = token OR NOT (p_queue OR token IS NOT NULL)) THEN
                retry := {schema}.micros_until(v_front.earliest);
            END IF;
        END IF;
    END IF;
    IF token IS NOT NULL THEN
        -- Whoever leaves may have given it the lock just now, or it has left itself.
        UPDATE {schema}.line AS l SET ends = greatest(
            l.ends,
            v_now + (CASE WHEN l.held THEN p_lease ELSE p_waiter_lease END + p_delay) * interval '1 microsecond'
        ), inbox = p_inbox
        WHERE l.name = p_name AND l.token = acquire.token RETURNING l.token, l.held INTO token, v_held;
    ELSIF v_held OR p_queue THEN
        token := v_number;
        IF p_bell THEN
            -- Taken already only where another lock has this number.
            bell := {schema}.bell(p_name, v_number);
            IF NOT pg_try_advisory_lock(bell) THEN
                bell := NULL;
            ELSIF NOT v_held AND v_last <> v_first THEN
                ahead := {schema}.bell(p_name, v_last);
            END IF;
        END IF;
        INSERT INTO {schema}.line (name, token, holder, mode, held, ends, joined, inbox, note)
        VALUES (
            p_name, v_number, p_holder, p_mode, v_held,
            v_now + (CASE WHEN v_held THEN p_lease ELSE p_waiter_lease END + p_delay) * interval '1 microsecond',
            v_now, CASE WHEN ahead IS NULL THEN p_inbox ELSE '' END, p_note
        );
        -- Now and then, what nobody asks for any more is cleared away.
        IF v_number % 64 = 0 THEN
            v_done := {schema}.sweep();
        END IF;
    END IF;
    whose := {schema}.told(p_holder, v_held);
    -- The last number of a block opens the next one, and nobody gets a number of that before it is on the disk.
    IF v_number = v_ceiling THEN
        v_done := {schema}.reserve(v_bucket, v_number);
    END IF;
    IF v_number = v_ceiling OR (p_durable AND token IS NOT NULL) THEN
        v_done := {schema}.commit_durably(true);
    ELSE
        v_done := set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;

-- The same, on the disk when it is answered, in two transactions: while it waits for the disk nobody else has to wait for the
-- name. What others do meanwhile reaches the disk after it, or not at all.
CREATE PROCEDURE {schema}.acquire_and_flush(
    p_name text, INOUT whose bytea, p_mode text, p_lease bigint, p_waiter_lease bigint, p_delay bigint,
    p_queue boolean, p_inbox text, p_note text,
    INOUT token bigint, INOUT retry bigint
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_got record := {schema}.acquire(
        p_name, whose, p_mode, p_lease, p_waiter_lease, p_delay, p_queue, p_inbox, p_note, false, false
    );
    v_done text;
BEGIN
    token := v_got.token;
    retry := v_got.retry;
    whose := v_got.whose;
    IF token IS NOT NULL THEN
        COMMIT;
        v_done := {schema}.flush();
    END IF;
END
$$;

-- Joins with a bell and, behind another one that waits, listens. bell: NULL where the session does not have it any more.
-- told: as {schema}.listen says it; `f` for the first that waits, NULL also for an entry that holds without having waited.
CREATE PROCEDURE {schema}.acquire_and_listen(
    p_name text, INOUT whose bytea, p_mode text, p_lease bigint, p_waiter_lease bigint, p_delay bigint,
    p_inbox text, p_note text, p_durable boolean, p_patience integer,
    INOUT token bigint, INOUT retry bigint, INOUT bell bigint, INOUT told text
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_holder bytea := whose;
    v_got record := {schema}.acquire(
        p_name, whose, p_mode, p_lease, p_waiter_lease, p_delay, true, p_inbox, p_note, true, false
    );
    v_done text;
BEGIN
    token := v_got.token;
    retry := v_got.retry;
    whose := v_got.whose;
    bell := v_got.bell;
    told := CASE WHEN whose <> v_holder THEN 'f' END;
    IF p_durable THEN
        COMMIT;
        v_done := {schema}.flush();
    END IF;
    IF v_got.ahead IS NOT NULL THEN
        COMMIT;
        told := {schema}.listen(p_name, v_holder, token, bell, v_got.ahead, p_inbox, p_patience);
        IF told IS NULL OR told = 'w' THEN
            bell := NULL;
        END IF;
    END IF;
END
$$;
