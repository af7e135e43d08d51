-- :name :number :holder :own (a bell). What leave.sql does, and rings for who waits right behind the entry, if it is there. The row is locked by
-- then, so who hears the bell waits until it is gone for all (hear.sql), which is before that is on the disk.
DELETE FROM `onelock_line` WHERE name = :name AND number = :number AND holder = :holder
AND ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND COALESCE(RELEASE_LOCK(:own), 0) >= 0;
