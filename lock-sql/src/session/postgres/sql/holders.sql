-- $1 the key. A row for each session that holds it: the mode, and the name that says what it holds.
SELECT l.mode, a.application_name FROM {holders}
