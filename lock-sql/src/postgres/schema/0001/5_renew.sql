-- Items of one name stand together, in the order of the line. The answers are as many, in the same order. token: NULL where
-- there is no such entry. whose: as {schema}.told says it.
--
-- A renewal changes its own row and locks no name, but for those in whose line a waiter may hold by now. It does not wait long for what
-- another transaction has locked: many are renewed together.
CREATE FUNCTION {schema}.renew(
    p_names text[], p_holders bytea[], p_leases bigint[], p_waiter_leases bigint[], p_delays bigint[], p_inbox text,
    p_durable boolean, OUT tokens bigint[], OUT retries bigint[], OUT whose bytea[]
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET lock_timeout = '500ms'
AS $$
DECLARE
    f {schema}.front;
    v_moved text[];
    v_name text;
    v_token bigint;
    v_held boolean;
    v_done text := {schema}.check_transaction();
BEGIN
    v_moved := ARRAY(
        SELECT DISTINCT w.name FROM unnest(p_names, p_holders) AS w (name, holder)
        LEFT JOIN LATERAL (
            SELECT t.name, t.waiter, t.due, t.waiter_due FROM {schema}.front AS t
            WHERE t.name = w.name ORDER BY t.version DESC LIMIT 1
        ) AS k ON true
        WHERE CASE
            WHEN k.name IS NOT NULL THEN k.waiter IS NOT NULL AND least(k.due, k.waiter_due) <= clock_timestamp()
            ELSE EXISTS (
                SELECT FROM {schema}.line AS l WHERE l.name = w.name AND l.holder = w.holder AND NOT l.held
            )
        END
        -- The server has room for a limited number of locks.
        LIMIT 64
    );
    IF cardinality(v_moved) > 0 THEN
        v_done := {schema}.lock_names(v_moved);
        FOREACH v_name IN ARRAY v_moved LOOP
            f := {schema}.settle(v_name);
        END LOOP;
    END IF;
    v_done := {schema}.commit_durably(p_durable);
    v_name := NULL;
    FOR i IN 1 .. cardinality(p_names) LOOP
        UPDATE {schema}.line AS l SET ends = greatest(
            l.ends,
            clock_timestamp() + (
                CASE WHEN l.held THEN p_leases[i] ELSE p_waiter_leases[i] END + p_delays[i]
            ) * interval '1 microsecond'
        ), inbox = p_inbox
        WHERE l.name = p_names[i] AND l.holder = p_holders[i] AND l.ends > clock_timestamp()
        RETURNING l.token, l.held INTO v_token, v_held;
        tokens[i] := v_token;
        retries[i] := NULL;
        whose[i] := {schema}.told(p_holders[i], v_token IS NOT NULL AND v_held);
        IF NOT v_held THEN
            IF p_names[i] IS DISTINCT FROM v_name THEN
                v_name := p_names[i];
                IF v_name = ANY (v_moved) THEN
                    f := {schema}.settle(v_name);
                ELSE
                    SELECT t.* INTO f FROM {schema}.front AS t WHERE t.name = v_name ORDER BY t.version DESC LIMIT 1;
                END IF;
            END IF;
            IF f.name IS NULL THEN
                retries[i] := 0;
            ELSIF f.waiter = v_token THEN
                retries[i] := {schema}.micros_until(f.due);
            END IF;
        END IF;
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
