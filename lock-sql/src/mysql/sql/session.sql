-- :lock_wait (seconds). What every verb counts on, whatever the server's defaults are. The comments are for MariaDB or for
-- MySQL only, which each executes.
SET NAMES utf8mb4;
SET SESSION sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION',
    SESSION time_zone = '+00:00', SESSION autocommit = 1, SESSION completion_type = 'NO_CHAIN',
    SESSION innodb_lock_wait_timeout = :lock_wait, SESSION lock_wait_timeout = :lock_wait,
    SESSION sql_select_limit = 18446744073709551615, SESSION sql_big_selects = 1, SESSION sql_safe_updates = 0,
    SESSION sql_auto_is_null = 0, SESSION group_concat_max_len = 1073741824
    /*M! , SESSION max_statement_time = 0 */ /*!80000 , SESSION max_execution_time = 0 */;
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
