SELECT name, array_to_string(modes, ' ') FROM {schema}.list($1, $2, convert_from(decode($3, 'hex'), 'UTF8'), $4::integer)
