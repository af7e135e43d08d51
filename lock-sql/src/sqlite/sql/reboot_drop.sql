-- Every client died with the boot it lived on, so its entries go at once.
DELETE FROM onelock_line WHERE held = 0 OR delay = 0;
