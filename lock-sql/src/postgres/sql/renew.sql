SELECT tokens, retries, whose FROM {schema}.renew($1, $2, $3, $4, $5, $6, {durable})
