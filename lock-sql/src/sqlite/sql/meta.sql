-- ?1 boot id, ?2 now. The last number given, whether the times are of this boot, and whether there is something to drop.
SELECT number, boot = ?1, boot <> ?1 OR EXISTS (SELECT 1 FROM onelock_line WHERE ends <= ?2) FROM onelock_meta WHERE id = 1;
