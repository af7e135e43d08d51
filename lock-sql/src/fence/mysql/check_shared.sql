SELECT newest FROM onelock_fence WHERE name = ? LOCK IN SHARE MODE
