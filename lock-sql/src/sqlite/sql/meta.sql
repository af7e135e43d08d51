SELECT number, boot FROM onelock_meta WHERE id = 1;
