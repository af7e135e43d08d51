-- Bells: who gives an entry back tells who waits right behind it, and nobody else. A notification wakes every session of the
-- database that listens.
--
-- A bell is an advisory lock. The session that made the entry holds it until the entry is given back; the session right
-- behind waits for it, and looks then. It is a hint and no more: only the table says who holds.

-- The number of a bell. An advisory lock has no room for a name; where two have the same number one of them goes unheard.
CREATE FUNCTION {schema}.bell(p_name text, p_token bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT hashtextextended('{schema} ' || p_name, p_token) $$;

-- Lets the bell go when this transaction has been committed: whoever hears it sees what was done.
CREATE FUNCTION {schema}.ring(p_bell bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_done text;
BEGIN
    v_done := pg_try_advisory_xact_lock(p_bell);
    v_done := pg_advisory_unlock(p_bell);
END
$$;

-- Waits for the bell ahead, no longer than p_patience milliseconds, and looks: what a notification would say when the entry
-- holds, NULL when it is gone. One that waits is told by a notification from then on: `n` when nobody had the bell ahead,
-- `w` when it was not rung. Then the line is slow, and the entry loses its own bell.
CREATE FUNCTION {schema}.listen(
    p_name text, p_holder bytea, p_token bigint, p_bell bigint, p_ahead bigint, p_inbox text, p_patience integer
) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_rung boolean := true;
    v_held boolean;
    v_before text := current_setting('lock_timeout');
    v_done text;
BEGIN
    v_done := set_config('lock_timeout', p_patience::text, true);
    BEGIN
        v_done := pg_advisory_xact_lock_shared(p_ahead);
        -- In here, as a timeout that came together with the lock is raised before the next statement.
        SELECT l.held INTO v_held FROM {schema}.line AS l
        WHERE l.name = p_name AND l.token = p_token AND l.ends > clock_timestamp();
    EXCEPTION WHEN lock_not_available THEN
        v_rung := false;
    END;
    v_done := set_config('lock_timeout', v_before, true);
    IF v_held IS NOT TRUE THEN
        v_done := {schema}.lock_name(p_name);
        v_done := set_config('synchronous_commit', 'off', true);
        UPDATE {schema}.line AS l SET inbox = p_inbox
        WHERE l.name = p_name AND l.token = p_token AND l.ends > clock_timestamp() RETURNING l.held INTO v_held;
    END IF;
    IF v_held THEN
        RETURN 'h' || encode(p_holder, 'hex') || p_token;
    END IF;
    IF v_held IS NULL OR NOT v_rung THEN
        v_done := pg_advisory_unlock(p_bell);
    END IF;
    RETURN CASE WHEN v_rung AND NOT v_held THEN 'n' WHEN NOT v_held THEN 'w' END;
END
$$;
