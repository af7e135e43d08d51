-- Whether the entry is there; its bucket's counter is at least the token then.
CREATE FUNCTION {schema}.raise(p_name text, p_holder bytea, p_token bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
BEGIN
    PERFORM {schema}.lock_name(p_name);
    PERFORM {schema}.commit_durably();
    PERFORM {schema}.settle(p_name);
    PERFORM FROM {schema}.line AS l WHERE l.name = p_name AND l.holder = p_holder;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE {schema}.bucket AS b SET number = p_token
    WHERE b.id = {schema}.bucket_of(p_name) AND b.number < p_token;
    RETURN true;
END
$$;
