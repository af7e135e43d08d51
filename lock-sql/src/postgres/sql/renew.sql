SELECT states, tokens, retries, ($2::bytea[])[1] AS whose FROM {schema}.renew($1, $2, $3, $4, $5, $6, {durable})
