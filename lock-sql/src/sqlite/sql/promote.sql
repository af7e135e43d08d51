-- ?1 name, ?2 mode of the holders to be, ?3 how many more fit (-1: any number). Rows: the tokens that hold now.
UPDATE onelock_line SET held = 1
WHERE token IN (
    SELECT token FROM onelock_line
    WHERE name = ?1 AND held = 0 AND token < coalesce(
        (SELECT token FROM onelock_line WHERE name = ?1 AND held = 0 AND mode <> ?2 ORDER BY token LIMIT 1),
        9223372036854775807
    )
    ORDER BY token LIMIT ?3
)
RETURNING token;
