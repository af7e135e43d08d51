-- Whether the entry is there; later numbers are larger than the token then.
CREATE FUNCTION {schema}.raise(p_name text, p_holder bytea, p_token bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    f {schema}.front;
    v_done text := {schema}.lock_name(p_name);
BEGIN
    v_done := {schema}.commit_durably(true);
    f := {schema}.settle(p_name);
    PERFORM FROM {schema}.line AS l WHERE l.name = p_name AND l.holder = p_holder AND l.ends > clock_timestamp();
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    v_done := {schema}.raise_number(p_token);
    RETURN true;
END
$$;
