//! What a client finds out about the server, the tables and its rights before it gives a lock.

use lock_core::{Backend, ErrorKind, Mode};
use lock_sql::MySqlBackend;

use crate::mysql_server::{MariaDb, mysqld};
use crate::support::{config, connect, held, request};

async fn refused(url: &str) -> lock_core::Error {
    MySqlBackend::connect(config(url)).await.unwrap_err()
}

fn url_of(server: &MariaDb, user: &str) -> String {
    format!("mysql://{user}@127.0.0.1:{}/locks", server.port())
}

#[tokio::test]
async fn rights_are_checked_and_named() {
    let server = MariaDb::start(&[]).await.unwrap();
    for user in ["stranger", "creator", "worker", "reader"] {
        server.run(&format!("CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'pw-{user}'")).await.unwrap();
    }
    let with = |user: &str| url_of(&server, &format!("{user}:pw-{user}"));
    let error = refused(&with("stranger")).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let error = refused(&url_of(&server, "worker:wrong")).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!format!("{error} {error:?}").contains("wrong"), "{error:?}");
    // Tables are missing and may not be made.
    server.run("GRANT SELECT, INSERT, UPDATE, DELETE ON locks.* TO worker@'127.0.0.1'").await.unwrap();
    let error = refused(&with("worker")).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("0001_line.sql"), "{error}");
    // Somebody with the right makes them; then the run-time rights do.
    let rights = "GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON locks.* TO creator@'127.0.0.1'";
    server.run(rights).await.unwrap();
    connect(&with("creator")).await;
    let store = connect(&with("worker")).await;
    let entry = request("a", Mode::Exclusive);
    held(&store, &entry).await;
    store.release(&entry.ticket()).await.unwrap();
    store.close().await.unwrap();
    // One right is missing, on one table.
    server.run("GRANT SELECT, INSERT, UPDATE ON locks.* TO reader@'127.0.0.1'").await.unwrap();
    let error = refused(&with("reader")).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("DELETE"), "{error}");
    // A server that takes no writes.
    server.run("SET GLOBAL read_only = ON").await.unwrap();
    let error = refused(&with("worker")).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
    // A right that goes later.
    server.run("SET GLOBAL read_only = OFF").await.unwrap();
    let store = connect(&with("worker")).await;
    server.run("REVOKE INSERT ON locks.* FROM worker@'127.0.0.1'").await.unwrap();
    // Rights are looked up anew by each connection that uses the database.
    let error = refused(&with("worker")).await;
    assert!(error.to_string().contains("INSERT"), "{error}");
    store.close().await.unwrap();
}

#[tokio::test]
async fn the_migration_may_be_run_by_hand() {
    let server = MariaDb::start(&[]).await.unwrap();
    let file = include_str!("../../migrations/mysql/0001_line.sql");
    for _ in 0..2 {
        server.run(&format!("USE locks; {file}")).await.unwrap();
    }
    held(&connect(&server.url()).await, &request("a", Mode::Exclusive)).await;
    // Several stores in one database.
    let other = connect(&format!("{}?table_prefix=other_", server.url())).await;
    held(&other, &request("a", Mode::Exclusive)).await;
    assert_eq!(server.count("SELECT COUNT(*) FROM locks.other_line").await.unwrap(), 1);
}

/// Many clients that come first at once make the tables once.
#[tokio::test]
async fn clients_that_come_first_together_all_get_on() {
    let server = MariaDb::start(&[]).await.unwrap();
    let urls = vec![server.url(); 12];
    let stores = futures_util::future::join_all(urls.iter().map(|url| connect(url))).await;
    for (i, store) in stores.iter().enumerate() {
        held(store, &request(&format!("first-{i}"), Mode::Exclusive)).await;
    }
}

#[tokio::test]
async fn tables_that_are_not_ours_are_left_alone() {
    let server = MariaDb::start(&[]).await.unwrap();
    let plant = "CREATE TABLE locks.onelock_name (name VARBINARY(765) PRIMARY KEY, colour INT); \
                 INSERT INTO locks.onelock_name VALUES ('a', 7)";
    server.run(plant).await.unwrap();
    let error = refused(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    assert_eq!(server.count("SELECT colour FROM locks.onelock_name WHERE name = 'a'").await.unwrap(), 7);
    server.run("DROP TABLE locks.onelock_name").await.unwrap();
    connect(&server.url()).await;
    // An engine without transactions.
    server.run("ALTER TABLE locks.onelock_line ENGINE = MyISAM").await.unwrap();
    let error = refused(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    assert!(error.to_string().contains("MyISAM"), "{error}");
    server.run("ALTER TABLE locks.onelock_line ENGINE = InnoDB").await.unwrap();
    // A later version.
    server.run("UPDATE locks.onelock_floor SET version = 2").await.unwrap();
    let error = refused(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    server.run("UPDATE locks.onelock_floor SET version = 1").await.unwrap();
    connect(&server.url()).await;
    // Rows that are not ours do not get in.
    for row in
        ["'a', 1, '', 'q', 1, 1, 1, ''", "'a', 1, '', 'x', 2, 1, 1, ''", "'a', 0, '', 'x', 1, 1, 1, ''"]
    {
        let planted = server.run(&format!("INSERT INTO locks.onelock_line VALUES ({row})")).await;
        assert!(planted.is_err(), "{row}");
    }
}

#[tokio::test]
async fn what_cannot_keep_the_promises_is_said() {
    let server = MariaDb::start(&[]).await.unwrap();
    let error = refused(&format!("mysql://root@127.0.0.1:{}/nowhere", server.port())).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(connect(&server.url()).await.capabilities().durable);
    server.run("SET GLOBAL innodb_flush_log_at_trx_commit = 2").await.unwrap();
    assert!(!connect(&server.url()).await.capabilities().durable);
    // The defaults of a server must not matter.
    let odd = "SET GLOBAL transaction_isolation = 'SERIALIZABLE', GLOBAL sql_mode = 'ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH', \
               GLOBAL time_zone = '+05:30', GLOBAL autocommit = OFF";
    let isolation = if mysqld().is_some() { "transaction_isolation" } else { "tx_isolation" };
    server.run(&odd.replace("transaction_isolation", isolation)).await.unwrap();
    let store = connect(&server.url()).await;
    let entry = request("odd", Mode::Exclusive);
    held(&store, &entry).await;
    let expires = store.inspect(&entry.name).await.unwrap().holders[0].expires_in.unwrap();
    assert!(expires <= entry.lease && expires > entry.lease / 2, "{expires:?}");
    store.release(&entry.ticket()).await.unwrap();
}

/// The server says that it is a Galera node.
#[tokio::test]
async fn galera_is_refused() {
    if mysqld().is_some() {
        println!("only MariaDB has Galera built in");
        return;
    }
    let server =
        MariaDb::start(&["--wsrep-on=ON", "--wsrep-provider=none", "--binlog-format=ROW"]).await.unwrap();
    assert_eq!(server.texts("SELECT @@GLOBAL.wsrep_on").await.unwrap(), ["1"]);
    let error = refused(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("Galera"), "{error}");
}
