-- Whether the entry was there. Losing this with the server's power keeps the lock until its lease ends, which is safe, so it
-- does not wait for the disk. p_bell: of the entry, where this session holds it, else zero.
CREATE FUNCTION {schema}.release(p_name text, p_holder bytea, p_bell bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_there boolean;
    v_first bigint;
    v_mode text;
    v_held boolean;
    v_ends timestamptz;
    v_inbox text;
    v_holder bytea;
    v_done text;
BEGIN
    IF p_bell <> 0 AND current_setting('transaction_isolation') = 'read committed' THEN
        -- Whoever has a bell mostly has somebody behind it who is to hold alone. Then the two entries are all that changes, and
        -- those who join meanwhile, and have locked the name, are not waited for: while one of the two holds, all they can do
        -- is to stand behind.
        SELECT l.token, l.mode, l.held, l.ends INTO v_first, v_mode, v_held, v_ends
        FROM {schema}.line AS l WHERE l.name = p_name AND l.holder <> p_holder ORDER BY l.token LIMIT 1;
        IF v_mode = 'x' AND NOT v_held AND v_ends > clock_timestamp() THEN
            v_done := set_config('synchronous_commit', 'off', true);
            DELETE FROM {schema}.line AS l
            WHERE l.name = p_name AND l.holder = p_holder AND l.held AND l.ends > clock_timestamp();
            IF FOUND THEN
                -- What it was to be told by may have changed since it was looked at.
                UPDATE {schema}.line AS l SET held = true
                WHERE l.name = p_name AND l.token = v_first AND l.ends > clock_timestamp()
                RETURNING l.inbox, l.holder INTO v_inbox, v_holder;
                IF v_holder IS NULL THEN
                    -- To lock the name now could be to wait for who waits for this.
                    RAISE EXCEPTION 'whoever was next has just left: try again' USING ERRCODE = '40001';
                END IF;
                IF v_inbox <> '' THEN
                    v_done := {schema}.tell(v_inbox, v_holder, v_first);
                END IF;
                v_done := {schema}.ring(p_bell);
                RETURN true;
            END IF;
        END IF;
    END IF;
    v_done := {schema}.lock_name(p_name);
    v_done := set_config('synchronous_commit', 'off', true);
    -- An entry whose lease has ended is no longer there to be released; settling drops it.
    DELETE FROM {schema}.line AS l
    WHERE l.name = p_name AND l.holder = p_holder AND l.ends > clock_timestamp();
    v_there := FOUND;
    SELECT l.token, l.mode, l.held, l.ends, l.inbox, l.holder INTO v_first, v_mode, v_held, v_ends, v_inbox, v_holder
    FROM {schema}.line AS l WHERE l.name = p_name ORDER BY l.token LIMIT 1;
    -- Mostly whoever stands first now is to hold alone: told at once, without a look at the rest of the line.
    IF v_mode = 'x' AND v_ends > clock_timestamp() THEN
        IF NOT v_held THEN
            UPDATE {schema}.line AS l SET held = true WHERE l.name = p_name AND l.token = v_first;
            IF v_inbox <> '' THEN
                v_done := {schema}.tell(v_inbox, v_holder, v_first);
            END IF;
        END IF;
    ELSIF v_first IS NOT NULL THEN
        v_done := {schema}.settle(p_name, NULL);
    END IF;
    IF p_bell <> 0 THEN
        v_done := {schema}.ring(p_bell);
    END IF;
    RETURN v_there;
END
$$;
