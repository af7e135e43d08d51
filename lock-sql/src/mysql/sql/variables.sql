-- What the promises depend on. Not GLOBAL: Percona XtraDB Cluster has wsrep_on for sessions only.
SHOW VARIABLES WHERE Variable_name IN ('version', 'wsrep_on', 'innodb_flush_log_at_trx_commit', 'log_bin',
    'sync_binlog', 'group_replication_single_primary_mode');
