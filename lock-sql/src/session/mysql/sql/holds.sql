-- :key :holder :low :high :epoch. One row: whether that session holds the lock, and says that its number has these parts.
SELECT CAST(COALESCE(IS_USED_LOCK(:key) = :holder AND IS_USED_LOCK('onelock/:holder/0/:low') = :holder
    AND IS_USED_LOCK('onelock/:holder/1/:high') = :holder
    AND IS_USED_LOCK(CONCAT('onelock/:holder/2/', :epoch & 4095)) <=> IF(:epoch, :holder, NULL)
    AND IS_USED_LOCK(CONCAT('onelock/:holder/3/', :epoch >> 12)) <=> IF(:epoch, :holder, NULL), 0) AS SIGNED);
