SELECT {schema}.evict($1, $2::bigint)
