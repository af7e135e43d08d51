-- The living entries of a name, in the order of the line.
CREATE FUNCTION {schema}.inspect(p_name text)
RETURNS TABLE (token bigint, mode text, note text, age bigint, expires bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    f {schema}.front;
    v_done text;
BEGIN
    -- What has expired is cleared away by a look, but a look at a quiet line writes nothing.
    PERFORM FROM {schema}.line AS l WHERE l.name = p_name AND l.ends <= clock_timestamp();
    IF FOUND THEN
        v_done := {schema}.lock_name(p_name);
        f := {schema}.settle(p_name);
        DELETE FROM {schema}.line AS l WHERE l.name = p_name AND l.ends <= clock_timestamp();
    END IF;
    RETURN QUERY SELECT l.token, l.mode, l.note,
        greatest(0, extract(epoch FROM clock_timestamp() - l.joined) * 1000000)::bigint,
        {schema}.micros_until(l.ends)
    FROM {schema}.line AS l WHERE l.name = p_name AND l.ends > clock_timestamp() ORDER BY l.token;
END
$$;

-- Names with living entries from p_first on, below p_end and behind p_after, with the modes of their lines.
CREATE FUNCTION {schema}.list(p_first text, p_end text, p_after text, p_limit integer)
RETURNS TABLE (name text, modes text[])
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT l.name, array_agg(l.mode ORDER BY l.token) FROM {schema}.line AS l
    WHERE l.name >= p_first AND l.name < p_end AND l.name > p_after AND l.ends > clock_timestamp()
    GROUP BY l.name ORDER BY l.name LIMIT p_limit
$$;

-- For each entry in order: what a notification would say when it holds, `w` when it waits, NULL when it is gone.
CREATE FUNCTION {schema}.watched(p_names text[], p_holders bytea[]) RETURNS SETOF text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE
        WHEN l.held THEN 'h' || encode(l.holder, 'hex') || l.token
        WHEN l.token IS NOT NULL THEN 'w'
    END
    FROM unnest(p_names, p_holders) WITH ORDINALITY AS w (name, holder, place)
    LEFT JOIN {schema}.line AS l
        ON l.name = w.name AND l.holder = w.holder AND l.ends > clock_timestamp()
    ORDER BY w.place
$$;

-- The schema version. The last thing to come into being: where it answers, all the rest is there. A client asks for it first: the
-- number that is drawn shows whether the tables were copied from another server, before any line is read.
CREATE FUNCTION {schema}.onelock_version() RETURNS integer
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN current_setting('transaction_read_only')::boolean OR {schema}.draw(NULL) > 0 THEN version END
    FROM {schema}.version
$$;

INSERT INTO {schema}.version (id, version) VALUES (1, 1);

-- Who may call them is granted role by role. The procedures have no rights of their own: they call functions by the rights of
-- their caller.
REVOKE ALL ON ALL ROUTINES IN SCHEMA {schema} FROM PUBLIC;
