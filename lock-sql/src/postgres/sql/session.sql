-- What the functions ask for, whatever the database's defaults are. A wait for a lock ends first, as such.
SET default_transaction_isolation = 'read committed'; SET statement_timeout = 0; SET lock_timeout = {ms};
