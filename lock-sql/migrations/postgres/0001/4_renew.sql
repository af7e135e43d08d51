-- One row for each item, in order. Items of one name stand together: its line is settled once. state: 2 held, 1 waiting, 0 no such entry.
CREATE FUNCTION {schema}.renew(
    p_names text[], p_holders bytea[], p_leases bigint[], p_waiter_leases bigint[], p_delays bigint[], p_inbox text
) RETURNS TABLE (state integer, token bigint, retry bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_front record;
    v_held boolean;
    v_settled text;
BEGIN
    PERFORM {schema}.lock_names(p_names);
    PERFORM {schema}.commit_durably();
    FOR i IN 1 .. cardinality(p_names) LOOP
        IF p_names[i] IS DISTINCT FROM v_settled THEN
            v_front := {schema}.settle(p_names[i]);
            v_settled := p_names[i];
        END IF;
        SELECT l.token, l.held INTO token, v_held
        FROM {schema}.line AS l WHERE l.name = p_names[i] AND l.holder = p_holders[i];
        state := 0;
        retry := NULL;
        IF token IS NOT NULL THEN
            UPDATE {schema}.line AS l SET ends = greatest(
                l.ends,
                clock_timestamp() + (
                    CASE WHEN v_held THEN p_leases[i] ELSE p_waiter_leases[i] END + p_delays[i]
                ) * interval '1 microsecond'
            ), inbox = p_inbox
            WHERE l.name = p_names[i] AND l.token = renew.token;
            state := CASE WHEN v_held THEN 2 ELSE 1 END;
            IF NOT v_held AND v_front.waiter = token THEN
                retry := {schema}.micros_until(v_front.earliest);
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
