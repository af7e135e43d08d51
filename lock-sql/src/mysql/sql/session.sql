-- :lock_wait (seconds). What every verb counts on, whatever the server's defaults are.
SET NAMES utf8mb4;
SET SESSION sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION',
    SESSION time_zone = '+00:00', SESSION autocommit = 1, SESSION innodb_lock_wait_timeout = :lock_wait;
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
