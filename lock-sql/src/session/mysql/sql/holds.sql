-- :key :holder :low :high. One row: whether that session holds the lock, and says that its number has these parts.
SELECT CAST(COALESCE(IS_USED_LOCK(:key) = :holder AND IS_USED_LOCK('onelock/:holder/0/:low') = :holder
    AND IS_USED_LOCK('onelock/:holder/1/:high') = :holder, 0) AS SIGNED);
