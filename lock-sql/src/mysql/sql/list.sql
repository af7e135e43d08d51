-- :from :until (the range of the prefix) :after (the last name of the page before) :limit
-- The entries of the next names, by name and number: name, mode.
SELECT l.name, l.mode FROM (
    SELECT DISTINCT name FROM `onelock_line`
    WHERE name >= :from AND name < :until AND name > :after
        AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    ORDER BY name LIMIT :limit
) p JOIN `onelock_line` l ON l.name = p.name
WHERE l.ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
ORDER BY l.name, l.number;
