-- Items of one name stand together, in the order of the line: its line is settled once, and a release of one of them locks its
-- rows in that order, too. The answers are as many, in the same order. token: NULL where there is no such entry. whose: as
-- {schema}.told says it.
CREATE FUNCTION {schema}.renew(
    p_names text[], p_holders bytea[], p_leases bigint[], p_waiter_leases bigint[], p_delays bigint[], p_inbox text,
    p_durable boolean, OUT tokens bigint[], OUT retries bigint[], OUT whose bytea[]
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_front record;
    v_token bigint;
    v_held boolean;
    v_settled text;
    v_done text;
BEGIN
    IF cardinality(p_names) = 1 THEN
        v_done := {schema}.lock_name(p_names[1]);
    ELSE
        v_done := {schema}.lock_names(p_names);
    END IF;
    v_done := {schema}.commit_durably(p_durable);
    FOR i IN 1 .. cardinality(p_names) LOOP
        IF p_names[i] IS DISTINCT FROM v_settled THEN
            v_front := {schema}.settle(p_names[i], p_holders[i]);
            v_settled := p_names[i];
            v_token := v_front.own;
            v_held := v_front.own_held;
        ELSE
            SELECT l.token, l.held INTO v_token, v_held
            FROM {schema}.line AS l WHERE l.name = p_names[i] AND l.holder = p_holders[i];
        END IF;
        tokens[i] := v_token;
        retries[i] := NULL;
        IF v_token IS NOT NULL THEN
            -- Whoever leaves may have given it the lock just now, or it has left itself.
            UPDATE {schema}.line AS l SET ends = greatest(
                l.ends,
                clock_timestamp() + (
                    CASE WHEN l.held THEN p_leases[i] ELSE p_waiter_leases[i] END + p_delays[i]
                ) * interval '1 microsecond'
            ), inbox = p_inbox
            WHERE l.name = p_names[i] AND l.token = v_token RETURNING l.token, l.held INTO v_token, v_held;
            tokens[i] := v_token;
            IF NOT v_held AND v_front.waiter = v_token THEN
                retries[i] := {schema}.micros_until(v_front.earliest);
            END IF;
        END IF;
        whose[i] := {schema}.told(p_holders[i], v_token IS NOT NULL AND v_held);
    END LOOP;
END
$$;

-- The same, on the disk when it is answered, as acquire_and_flush.
CREATE PROCEDURE {schema}.renew_and_flush(
    p_names text[], p_holders bytea[], p_leases bigint[], p_waiter_leases bigint[], p_delays bigint[], p_inbox text,
    INOUT tokens bigint[], INOUT retries bigint[], INOUT whose bytea[]
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_done text;
BEGIN
    SELECT r.tokens, r.retries, r.whose INTO tokens, retries, whose
    FROM {schema}.renew(p_names, p_holders, p_leases, p_waiter_leases, p_delays, p_inbox, false) AS r;
    COMMIT;
    v_done := {schema}.flush();
END
$$;
