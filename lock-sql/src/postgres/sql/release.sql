SELECT {schema}.release($1, decode($2, 'hex'))
