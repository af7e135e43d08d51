CALL {schema}.renew_and_flush($1::text[], $2, $3::bigint[], $4::bigint[], $5::bigint[], $6, NULL, NULL, NULL)
