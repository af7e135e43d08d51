SELECT name, modes FROM {schema}.list($1, $2, $3, $4)
