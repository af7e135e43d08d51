-- ?1 name, ?2 whether those that hold or those that wait
SELECT token, holder, mode, held, ends, joined, note FROM onelock_line WHERE name = ?1 AND held = ?2 ORDER BY token;
