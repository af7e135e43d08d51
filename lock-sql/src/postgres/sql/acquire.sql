SELECT whose, token, retry FROM {schema}.acquire($1, decode($2, 'hex'), $3, $4::bigint, $5::bigint, $6::bigint, $7::boolean, $8, convert_from(decode($9, 'hex'), 'UTF8'), $10::integer, {durable})
