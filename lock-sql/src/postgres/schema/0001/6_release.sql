-- Whether the entry was there. Losing this with the server's power keeps the lock until its lease ends, which is safe, so it
-- does not wait for the disk.
CREATE FUNCTION {schema}.release(p_name text, p_holder bytea) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    f {schema}.front;
    v_token bigint;
    v_held boolean;
    v_mode text;
    v_done text := {schema}.lock_name(p_name);
BEGIN
    v_done := {schema}.commit_durably(false);
    DELETE FROM {schema}.line AS l
    WHERE l.name = p_name AND l.holder = p_holder AND l.ends > clock_timestamp()
    RETURNING l.token, l.held, l.mode INTO v_token, v_held, v_mode;
    IF (SELECT t.version FROM {schema}.front AS t WHERE t.name = p_name ORDER BY t.version DESC LIMIT 1) IS NOT NULL
        OR EXISTS (SELECT FROM {schema}.line AS l WHERE l.name = p_name) THEN
        f := {schema}.settle(p_name, v_token, v_held, v_mode);
    END IF;
    RETURN v_token IS NOT NULL;
END
$$;
