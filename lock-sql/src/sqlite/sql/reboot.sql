-- ?1 now, ?2 boot id. Every client died with the boot it lived on, so its entries go at once; but a lock-delay also
-- covers what a lost holder has sent and what arrives late, so it runs in full from here. Such an entry is nobody's:
-- a fresh holder id keeps a stale ticket from renewing it.
DELETE FROM onelock_line WHERE held = 0 OR delay = 0;
UPDATE onelock_line SET holder = randomblob(16), joined = ?1, ends = ?1 + delay;
UPDATE onelock_meta SET boot = ?2 WHERE id = 1;
