CALL {schema}.renew_and_flush($1::text[], replace($2, 'x', repeat(chr(92), 2) || 'x')::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6, NULL, NULL, NULL)
