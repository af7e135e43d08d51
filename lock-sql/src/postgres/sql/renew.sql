SELECT tokens, retries, whose FROM {schema}.renew($1::text[], $2, $3::bigint[], $4::bigint[], $5::bigint[], $6, {durable})
