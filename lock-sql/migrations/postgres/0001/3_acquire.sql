-- Plain index scans only, here and in every verb that writes: they mark what is dead on the way, so that a lock taken a
-- thousand times between two vacuums is found as fast as at first.
--
-- token: NULL where there is no entry. retry: microseconds, for the first waiter or where there is no entry. whose: as
-- {schema}.told says it.
CREATE FUNCTION {schema}.acquire(
    p_name text, p_holder bytea, p_mode text, p_lease bigint, p_waiter_lease bigint, p_delay bigint,
    p_queue boolean, p_inbox text, p_note text, p_durable boolean,
    OUT token bigint, OUT retry bigint, OUT whose bytea
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_bucket integer := {schema}.bucket_of(p_name);
    v_number bigint;
    v_ceiling bigint;
    v_front record;
    v_held boolean := true;
    v_now timestamptz;
    v_done text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR pg_is_in_recovery() THEN
        v_done := {schema}.refuse_transaction();
    END IF;
    -- Locks the name and draws its next number at once; a number that is not needed is left out.
    UPDATE {schema}.counter AS c SET number = c.number + 1, ceiling = greatest(c.ceiling, c.number + 1)
    WHERE c.id = v_bucket RETURNING c.number, c.ceiling INTO v_number, v_ceiling;
    IF NOT FOUND THEN
        SELECT d.number, d.ceiling INTO v_number, v_ceiling FROM {schema}.recover_and_draw(v_bucket) AS d;
    END IF;
    PERFORM FROM {schema}.line AS l WHERE l.name = p_name LIMIT 1;
    IF FOUND THEN
        v_front := {schema}.settle(p_name, p_holder);
        token := v_front.own;
        v_held := coalesce(
            v_front.own_held,
            v_front.waiter IS NULL AND {schema}.fits(p_mode, v_front.holders, v_front.first_mode)
        );
    END IF;
    v_now := clock_timestamp();
    IF token IS NOT NULL THEN
        UPDATE {schema}.line AS l SET ends = greatest(
            l.ends,
            v_now + (CASE WHEN v_held THEN p_lease ELSE p_waiter_lease END + p_delay) * interval '1 microsecond'
        ), inbox = p_inbox
        WHERE l.name = p_name AND l.token = acquire.token;
    ELSIF v_held OR p_queue THEN
        token := v_number;
        INSERT INTO {schema}.line (name, token, holder, mode, held, ends, joined, inbox, note)
        VALUES (
            p_name, v_number, p_holder, p_mode, v_held,
            v_now + (CASE WHEN v_held THEN p_lease ELSE p_waiter_lease END + p_delay) * interval '1 microsecond',
            v_now, p_inbox, p_note
        );
        -- Now and then, what nobody asks for any more is cleared away.
        IF v_number % 64 = 0 THEN
            v_done := {schema}.sweep();
        END IF;
    END IF;
    whose := {schema}.told(p_holder, v_held);
    IF NOT v_held THEN
        IF token IS NULL OR coalesce(v_front.waiter, token) = token THEN
            retry := {schema}.micros_until(v_front.earliest);
        END IF;
    END IF;
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
    v_done text;
BEGIN
    SELECT a.token, a.retry, a.whose INTO token, retry, whose
    FROM {schema}.acquire(
        p_name, whose, p_mode, p_lease, p_waiter_lease, p_delay, p_queue, p_inbox, p_note, false
    ) AS a;
    IF token IS NOT NULL THEN
        COMMIT;
        v_done := {schema}.flush();
    END IF;
END
$$;
