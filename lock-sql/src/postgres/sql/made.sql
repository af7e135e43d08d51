-- $1: the schema as it stands in a statement, $2: its name. Whether the functions are there, and whether anything is.
SELECT to_regprocedure($1 || '.onelock_version()') IS NOT NULL,
    EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $2)
    OR EXISTS (SELECT FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = $2)
