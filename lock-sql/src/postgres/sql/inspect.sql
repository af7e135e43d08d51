SELECT token, mode, note, age, expires FROM {schema}.inspect($1)
