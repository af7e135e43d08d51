-- :holders. The names and numbers of the entries that are there.
SELECT name, number FROM `onelock_line` FORCE INDEX (holder)
WHERE holder IN (:holders) AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
