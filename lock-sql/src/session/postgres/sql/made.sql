SELECT to_regprocedure($1 || '.onelock_version()') IS NOT NULL,
    EXISTS (SELECT FROM pg_namespace AS n WHERE n.nspname = $2
        AND (EXISTS (SELECT FROM pg_class WHERE relnamespace = n.oid) OR EXISTS (SELECT FROM pg_proc WHERE pronamespace = n.oid)))
