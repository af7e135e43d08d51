SELECT {schema}.watched($1, $2)
