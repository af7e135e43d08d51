-- ?1 name, ?2 holder, ?3 now; with how many wait ahead of it, as far as 50
SELECT token, held, (
    SELECT count(*) FROM (
        SELECT 1 FROM onelock_line AS ahead WHERE ahead.name = ?1 AND ahead.held = 0 AND ahead.token < own.token LIMIT 50
    )
) FROM onelock_line AS own WHERE name = ?1 AND holder = ?2 AND ends > ?3;
