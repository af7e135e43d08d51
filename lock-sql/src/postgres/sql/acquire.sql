SELECT state, token, retry FROM {schema}.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9)
