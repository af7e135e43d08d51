-- :name :number :nobody (a holder that nobody is). The first half of an eviction: the entry keeps its place, but its client can
-- neither renew nor release it any more.
UPDATE `onelock_line` SET holder = :nobody WHERE name = :name AND number = :number
AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
