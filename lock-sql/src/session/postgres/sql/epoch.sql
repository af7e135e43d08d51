-- $1 a token epoch. From now on no number of a smaller one is drawn.
SELECT {schema}.begin_session($1)
