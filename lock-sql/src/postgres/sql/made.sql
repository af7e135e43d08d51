-- Whether the functions of the schema are there, and whether anything is.
SELECT to_regprocedure('"{schema}".onelock_version()') IS NOT NULL,
    EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = '{schema}')
    OR EXISTS (SELECT FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = '{schema}')
