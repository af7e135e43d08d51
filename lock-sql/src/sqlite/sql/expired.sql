-- ?1 now
SELECT 1 FROM onelock_line WHERE ends <= ?1;
