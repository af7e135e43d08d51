SELECT state, token, retry, ($2::bytea[])[1] FROM {schema}.renew($1, $2, $3, $4, $5, $6)
