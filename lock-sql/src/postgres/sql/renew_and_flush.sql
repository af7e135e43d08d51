CALL {schema}.renew_and_flush($1, $2, $3, $4, $5, $6, NULL, NULL, NULL)
