-- ?1 now. Of every name, so that one that nobody asks for again leaves nothing.
DELETE FROM onelock_line WHERE ends <= ?1 RETURNING holder;
