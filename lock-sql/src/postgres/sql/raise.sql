SELECT {schema}.raise($1, decode($2, 'hex'), $3::bigint)
