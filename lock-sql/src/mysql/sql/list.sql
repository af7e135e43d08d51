-- :from :until (the range of the prefix) :after (the last name of the page before) :limit
-- The next names, and the modes of the entries of each in the order of its line, with spaces between.
SELECT CONVERT(name USING utf8mb4), CONVERT(GROUP_CONCAT(mode ORDER BY number SEPARATOR ' ') USING utf8mb4) FROM `onelock_line`
WHERE name >= :from AND name < :until AND name > :after
    AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
GROUP BY name ORDER BY name LIMIT :limit;
