-- :key :holder :tag. One row: whether that session holds the lock, and says that it is this one's.
SELECT CAST(COALESCE(IS_USED_LOCK(:key) = :holder AND IS_USED_LOCK('onelock/:holder/t/:tag') = :holder, 0) AS SIGNED);
