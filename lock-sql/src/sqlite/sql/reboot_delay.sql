-- ?1 now. Every client died with the boot it lived on, so its entries end at once. But a lock-delay also covers what a lost holder
-- has sent and what arrives late, so it runs in full from here. Also of one that waits here: its promotion may have been lost with
-- the power. Such an entry is nobody's: a fresh holder id keeps a stale ticket from renewing it.
UPDATE onelock_line SET holder = randomblob(16), joined = ?1, ends = ?1 + delay;
