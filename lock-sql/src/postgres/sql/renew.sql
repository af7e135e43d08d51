SELECT tokens, retries, whose FROM {schema}.renew($1::text[], replace($2, 'x', repeat(chr(92), 2) || 'x')::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6, {durable})
