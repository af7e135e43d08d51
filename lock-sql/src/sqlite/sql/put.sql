-- ?1 token, ?2 name, ?3 holder, ?4 mode, ?5 held, ?6 ends, ?7 joined, ?8 delay, ?9 note. An entry joins, or is promoted or renewed;
-- that of another holder with this number is left as it is.
INSERT INTO onelock_line (token, name, holder, mode, held, ends, joined, delay, note)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (token) DO UPDATE SET held = ?5, ends = ?6 WHERE name = ?2 AND holder = ?3;
