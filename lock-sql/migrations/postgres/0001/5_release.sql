-- Whether the entry was there. Losing this with the server's power keeps the lock until its lease ends, which is safe, so it
-- does not wait for the disk.
CREATE FUNCTION {schema}.release(p_name text, p_holder bytea) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_there boolean;
    v_done text;
BEGIN
    v_done := {schema}.lock_name(p_name);
    v_done := set_config('synchronous_commit', 'off', true);
    -- An entry whose lease has ended is no longer there to be released; settling drops it.
    DELETE FROM {schema}.line AS l
    WHERE l.name = p_name AND l.holder = p_holder AND l.ends > clock_timestamp();
    v_there := FOUND;
    PERFORM FROM {schema}.line AS l WHERE l.name = p_name LIMIT 1;
    IF FOUND THEN
        v_done := {schema}.settle(p_name, NULL);
    END IF;
    RETURN v_there;
END
$$;
