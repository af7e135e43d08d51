-- ?1 name, ?2 holder. One row: who holds, who waits first, and the entry of this holder.
SELECT h.holders, h.mode, h.earliest, w.token, w.mode, o.token, o.held
FROM (
    SELECT count(*) AS holders, max(mode) AS mode, min(ends) AS earliest
    FROM onelock_line WHERE name = ?1 AND held = 1
) AS h
LEFT JOIN (
    SELECT token, mode FROM onelock_line WHERE name = ?1 AND held = 0 ORDER BY token LIMIT 1
) AS w
LEFT JOIN (
    SELECT token, held FROM onelock_line WHERE name = ?1 AND holder = ?2
) AS o;
