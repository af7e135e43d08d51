-- token: NULL where there is no entry. retry: microseconds, for the first waiter or where there is no entry. whose: as
-- {schema}.told says it. p_durable: whether the commit waits for the disk; NULL: only if nobody has the name or waits for it.
-- Plain index scans only, here and in every verb that writes, and no compiling, which the price set on other scans would set off.
CREATE FUNCTION {schema}.acquire(
    p_name text, p_holder bytea, p_mode text, p_lease bigint, p_waiter_lease bigint, p_delay bigint,
    p_queue boolean, p_inbox text, p_note text, p_epoch integer, p_durable boolean,
    OUT token bigint, OUT retry bigint, OUT whose bytea
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    f {schema}.front;
    v_free boolean;
    v_read bigint := pg_stat_get_xact_blocks_fetched('{schema}.line'::regclass);
    v_held boolean;
    v_now timestamptz;
    v_ends timestamptz;
    v_done text := {schema}.lock_name(p_name);
BEGIN
    -- Most names are free, which two indexes show; but not where an open snapshot keeps many dead rows of the name.
    v_free := (SELECT t.version FROM {schema}.front AS t WHERE t.name = p_name ORDER BY t.version DESC LIMIT 1) IS NULL
        AND NOT EXISTS (SELECT FROM {schema}.line AS l WHERE l.name = p_name)
        AND pg_stat_get_xact_blocks_fetched('{schema}.line'::regclass) <= v_read + 32;
    IF NOT v_free THEN
        f := {schema}.settle(p_name);
        v_free := f.holders = 0 AND f.waiter IS NULL;
    END IF;
    IF NOT v_free THEN
        SELECT l.token INTO token FROM {schema}.line AS l WHERE l.name = p_name AND l.holder = p_holder;
        IF token IS NOT NULL THEN
            -- It asks again.
            v_now := clock_timestamp();
            UPDATE {schema}.line AS l SET ends = greatest(
                l.ends,
                v_now + (CASE WHEN l.held THEN p_lease ELSE p_waiter_lease END + p_delay) * interval '1 microsecond'
            ), inbox = p_inbox
            WHERE l.name = p_name AND l.token = acquire.token AND l.ends > v_now RETURNING l.held INTO v_held;
            IF v_held IS NULL THEN
                DELETE FROM {schema}.line AS l WHERE l.name = p_name AND l.token = acquire.token;
                token := NULL;
            ELSE
                v_done := {schema}.commit_durably(coalesce(p_durable, false));
            END IF;
        END IF;
    END IF;
    IF token IS NULL THEN
        v_held := v_free OR (f.waiter IS NULL AND {schema}.fits(p_mode, f));
        IF v_held OR p_queue THEN
            v_done := {schema}.commit_durably(coalesce(p_durable, v_free AND coalesce(f.version, 0) = 0));
            token := {schema}.draw(p_epoch);
            v_now := clock_timestamp();
            v_ends := v_now
                + (CASE WHEN v_held THEN p_lease ELSE p_waiter_lease END + p_delay) * interval '1 microsecond';
            INSERT INTO {schema}.line (name, token, holder, mode, held, ends, joined, inbox, note)
            VALUES (p_name, acquire.token, p_holder, p_mode, v_held, v_ends, v_now, p_inbox, p_note);
            IF v_held AND f.version > 0 THEN
                f := {schema}.keep({schema}.held_by(f, p_mode, token, v_ends), false);
            ELSIF NOT v_held AND f.waiter IS NULL THEN
                f.waiter := token;
                f.waiter_due := v_ends;
                f := {schema}.keep(f, true);
            END IF;
            IF token % 64 = 0 THEN
                v_done := {schema}.tidy();
            END IF;
        END IF;
    END IF;
    whose := {schema}.told(p_holder, v_held);
    IF NOT v_held AND (token IS NULL OR token = f.waiter) THEN
        retry := {schema}.micros_until(f.due);
    END IF;
END
$$;

-- The same, on the disk when it is answered. Where others have the name or want it, in two transactions: while it waits for the
-- disk nobody else has to wait for the name. What others do meanwhile reaches the disk after it, or not at all.
CREATE PROCEDURE {schema}.acquire_and_flush(
    p_name text, INOUT whose bytea, p_mode text, p_lease bigint, p_waiter_lease bigint, p_delay bigint,
    p_queue boolean, p_inbox text, p_note text, p_epoch integer,
    INOUT token bigint, INOUT retry bigint
)
LANGUAGE plpgsql
AS $$
DECLARE
    -- Not called: whoever may not call it is refused before anything is done.
    v_done text := CASE WHEN whose IS NULL THEN {schema}.flush() END;
    v_got record := {schema}.acquire(
        p_name, whose, p_mode, p_lease, p_waiter_lease, p_delay, p_queue, p_inbox, p_note, p_epoch, NULL
    );
BEGIN
    token := v_got.token;
    retry := v_got.retry;
    whose := v_got.whose;
    IF token IS NOT NULL AND current_setting('synchronous_commit') = 'off' THEN
        COMMIT;
        v_done := {schema}.flush();
    END IF;
END
$$;
