SELECT {schema}.watched($1::text[], replace($2, 'x', repeat(chr(92), 2) || 'x')::bytea[])
