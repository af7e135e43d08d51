SELECT {schema}.evict($1, $2)
