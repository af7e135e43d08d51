SELECT newest FROM onelock_fence WHERE name = ?1
