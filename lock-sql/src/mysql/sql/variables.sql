-- What the promises depend on.
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'wsrep_on', 'innodb_flush_log_at_trx_commit', 'log_bin',
    'sync_binlog', 'group_replication_single_primary_mode');
