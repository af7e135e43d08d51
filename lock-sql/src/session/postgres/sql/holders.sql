-- $1 the key. One row: of each session that holds it the mode, and the name that says what it holds.
SELECT coalesce(array_agg(l.mode), '{}'), coalesce(array_agg(a.application_name), '{}') FROM {holders}
