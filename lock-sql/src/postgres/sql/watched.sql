SELECT {schema}.watched($1::text[], $2)
