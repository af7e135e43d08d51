SELECT token, retry, whose, NULL::bigint AS bell, NULL::text AS told
FROM {schema}.acquire($1, $2, $3, $4, $5, $6, true, $7, $8, false, {durable})
