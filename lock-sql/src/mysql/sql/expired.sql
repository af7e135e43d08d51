-- :limit. Names that have an expired entry.
SELECT DISTINCT name FROM `onelock_line`
WHERE ends <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) LIMIT :limit;
