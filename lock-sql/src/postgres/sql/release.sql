SELECT {schema}.release($1, $2)
