-- Plain index scans only, here and in every verb that writes: they mark what is dead on the way, so that a lock taken a
-- thousand times between two vacuums is found as fast as at first.
--
-- state: 2 held, 1 waiting, 0 no entry. retry: microseconds, for the first waiter or where there is no entry.
CREATE FUNCTION {schema}.acquire(
    p_name text, p_holder bytea, p_mode text, p_lease bigint, p_waiter_lease bigint, p_delay bigint,
    p_queue boolean, p_inbox text, p_note text,
    OUT state integer, OUT token bigint, OUT retry bigint
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_front record;
    v_held boolean;
BEGIN
    PERFORM {schema}.lock_name(p_name);
    PERFORM {schema}.commit_durably();
    v_front := {schema}.settle(p_name);
    SELECT l.token, l.held INTO token, v_held
    FROM {schema}.line AS l WHERE l.name = p_name AND l.holder = p_holder;
    IF token IS NULL THEN
        v_held := v_front.waiter IS NULL AND {schema}.fits(p_mode, v_front.holders, v_front.first_mode);
        IF NOT v_held AND NOT p_queue THEN
            state := 0;
            retry := {schema}.micros_until(v_front.earliest);
            RETURN;
        END IF;
        UPDATE {schema}.bucket AS b SET number = b.number + 1
        WHERE b.id = {schema}.bucket_of(p_name) RETURNING b.number INTO token;
        INSERT INTO {schema}.line (name, token, holder, mode, held, ends, joined, inbox, note)
        VALUES (
            p_name, token, p_holder, p_mode, v_held,
            clock_timestamp()
                + (CASE WHEN v_held THEN p_lease ELSE p_waiter_lease END + p_delay) * interval '1 microsecond',
            clock_timestamp(), p_inbox, p_note
        );
        -- Now and then, what nobody asks for any more is cleared away.
        IF token % 64 = 0 THEN
            PERFORM {schema}.sweep();
        END IF;
    ELSE
        UPDATE {schema}.line AS l SET ends = greatest(
            l.ends,
            clock_timestamp()
                + (CASE WHEN v_held THEN p_lease ELSE p_waiter_lease END + p_delay) * interval '1 microsecond'
        ), inbox = p_inbox
        WHERE l.name = p_name AND l.token = acquire.token;
    END IF;
    state := CASE WHEN v_held THEN 2 ELSE 1 END;
    IF NOT v_held AND coalesce(v_front.waiter, token) = token THEN
        retry := {schema}.micros_until(v_front.earliest);
    END IF;
END
$$;
