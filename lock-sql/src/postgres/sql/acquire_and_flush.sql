CALL {schema}.acquire_and_flush($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, NULL, NULL)
