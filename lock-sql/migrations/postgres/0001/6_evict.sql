-- Whether the entry was there. Its client is told that it is gone.
CREATE FUNCTION {schema}.evict(p_name text, p_token bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_inbox text;
    v_holder bytea;
BEGIN
    PERFORM {schema}.lock_name(p_name);
    PERFORM {schema}.settle(p_name, NULL);
    DELETE FROM {schema}.line AS l WHERE l.name = p_name AND l.token = p_token
    RETURNING l.inbox, l.holder INTO v_inbox, v_holder;
    IF v_holder IS NULL THEN
        RETURN false;
    END IF;
    IF v_inbox <> '' THEN
        PERFORM pg_notify(v_inbox, 'g' || encode(v_holder, 'hex'));
    END IF;
    PERFORM {schema}.settle(p_name, NULL);
    RETURN true;
END
$$;
