CALL {schema}.acquire_and_listen($1, $2, $3, $4, $5, $6, $7, $8, {durable}, $9, NULL, NULL, NULL, NULL)
