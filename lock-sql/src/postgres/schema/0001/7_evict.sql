-- Whether the entry was there. Its client is told that it is gone.
CREATE FUNCTION {schema}.evict(p_name text, p_token bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    f {schema}.front;
    v_inbox text;
    v_holder bytea;
    v_held boolean;
    v_mode text;
    v_done text := {schema}.lock_name(p_name);
BEGIN
    -- On the disk before anybody learns of it: else a crash could give the evicted one its lock back, beside the next.
    v_done := {schema}.commit_durably(true);
    DELETE FROM {schema}.line AS l WHERE l.name = p_name AND l.token = p_token AND l.ends > clock_timestamp()
    RETURNING l.inbox, l.holder, l.held, l.mode INTO v_inbox, v_holder, v_held, v_mode;
    v_done := {schema}.tell(v_inbox, 'g' || encode(v_holder, 'hex'));
    f := {schema}.settle(p_name, CASE WHEN v_holder IS NOT NULL THEN p_token END, v_held, v_mode);
    RETURN v_holder IS NOT NULL;
END
$$;
