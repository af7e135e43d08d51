-- Whether the entry is there; its bucket's counter is at least the token then.
CREATE FUNCTION {schema}.raise(p_name text, p_holder bytea, p_token bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_bucket integer := {schema}.lock_name(p_name);
    v_ceiling bigint;
    v_done text;
BEGIN
    v_done := {schema}.commit_durably(true);
    v_done := {schema}.settle(p_name, NULL);
    PERFORM FROM {schema}.line AS l WHERE l.name = p_name AND l.holder = p_holder;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE {schema}.counter AS c SET number = p_token, ceiling = greatest(c.ceiling, p_token)
    WHERE c.id = v_bucket AND c.number < p_token RETURNING c.ceiling INTO v_ceiling;
    IF v_ceiling = p_token THEN
        v_done := {schema}.reserve(v_bucket, p_token);
    END IF;
    RETURN true;
END
$$;
