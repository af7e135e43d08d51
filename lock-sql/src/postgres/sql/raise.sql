SELECT {schema}.raise($1, $2, $3)
