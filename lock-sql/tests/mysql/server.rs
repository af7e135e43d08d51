//! What a client finds out about the server, the tables and its rights before it gives a lock.

use onelock_core::{Backend, ErrorKind, Mode, Release};
use onelock_sql::MySqlBackend;
use sqlx::Row as _;

use crate::mysql_server::{Admin as _, MariaDb, RUN_TIME_RIGHTS};
use crate::support::{config, connect, held, request};
use onelock_conformance::servers::mariadb::mysqld;

/// The store's page.
const PAGE: &str = include_str!("../../MYSQL.md");

const OUR_TABLES: &str = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'locks'";

async fn refused(url: &str) -> onelock_core::Error {
    MySqlBackend::connect(config(url)).await.unwrap_err()
}

fn url_of(server: &MariaDb, user: &str) -> String {
    format!("mysql://{user}@127.0.0.1:{}/locks", server.port())
}

#[tokio::test]
async fn rights_are_checked_and_named() {
    let server = MariaDb::start(&[]).await.unwrap();
    for user in ["stranger", "creator", "worker"] {
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
    assert!(error.to_string().contains("mysql/schema/0001.sql"), "{error}");
    // Somebody with the right makes them; then the run-time rights do.
    let rights = "GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON locks.* TO creator@'127.0.0.1'";
    server.run(rights).await.unwrap();
    connect(&with("creator")).await;
    let store = connect(&with("worker")).await;
    let entry = request("a", Mode::Exclusive);
    held(&store, &entry).await;
    store.release(&entry.ticket()).await.unwrap();
    store.close().await.unwrap();
    // A right that goes later.
    let store = connect(&with("worker")).await;
    server.run("REVOKE INSERT ON locks.* FROM worker@'127.0.0.1'").await.unwrap();
    // Rights are looked up anew by each connection that uses the database.
    let error = refused(&with("worker")).await;
    assert!(error.to_string().contains("INSERT"), "{error}");
    store.close().await.unwrap();
}

/// The rights of the page are enough, and none of them is too much: without it a client does not even connect, and the
/// error names the right and the table.
#[tokio::test]
async fn each_missing_right_is_named() {
    let server = MariaDb::start(&[]).await.unwrap();
    let file = include_str!("../../src/mysql/schema/0001.sql");
    server.run(&format!("USE locks; {file}")).await.unwrap();
    let all: Vec<_> = RUN_TIME_RIGHTS
        .iter()
        .flat_map(|(table, rights)| rights.iter().map(move |right| (*table, *right)))
        .collect();
    assert_eq!(all.len(), 8);
    for (table, rights) in RUN_TIME_RIGHTS {
        let grant = format!("GRANT {} ON app.{table} TO", rights.join(", "));
        assert!(PAGE.contains(&grant), "the page lacks {grant}");
    }
    for missing in all.iter().map(Some).chain([None]) {
        server.run("DROP USER IF EXISTS locker@'127.0.0.1'; CREATE USER locker@'127.0.0.1'").await.unwrap();
        for (table, right) in all.iter().filter(|&right| Some(right) != missing) {
            server.run(&format!("GRANT {right} ON locks.{table} TO locker@'127.0.0.1'")).await.unwrap();
        }
        let url = url_of(&server, "locker");
        let Some((table, right)) = missing else {
            let store = connect(&url).await;
            held(&store, &request("a", Mode::Exclusive)).await;
            continue;
        };
        let error = refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{right} on {table}: {error}");
        let text = error.to_string();
        assert!(text.contains(right) && text.contains(table), "{right} on {table}: {text}");
    }
}

/// The query that the page gives for looking at a lock.
#[tokio::test]
async fn the_query_of_the_page_shows_a_line() {
    let server = MariaDb::start(&[]).await.unwrap();
    let store = connect(&server.url()).await;
    let mut first = request("orders/42", Mode::permit(5).unwrap());
    first.note = onelock_core::Note::new("wörker 'seven'").unwrap();
    let token = held(&store, &first).await.token;
    let query = &PAGE[PAGE.find("SELECT CONVERT").expect("the query")..];
    let query = &query[..query.find("```").expect("its end")];
    let rows = server.run(&format!("USE locks; {query}")).await.unwrap();
    assert_eq!(rows.len(), 1);
    let text = |column: &str| rows[0].try_get_unchecked::<String, _>(column).unwrap();
    assert_eq!(
        (text("name"), text("mode"), text("note")),
        ("orders%2F42".into(), "p5".into(), first.note.as_str().into())
    );
    assert_eq!(rows[0].get::<i64, _>("token"), token.get());
    // It holds for as long as the store says.
    let left = "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), TIMESTAMPADD(MICROSECOND, ends, '1970-01-01')) FROM locks.onelock_line";
    assert!(server.count(left).await.unwrap() <= first.lease.as_secs());
}

/// A server that takes no writes is not the primary (any more): refused at first, and an error that may be over soon
/// for who is connected.
#[tokio::test]
async fn a_read_only_server_is_one_that_cannot_serve_now() {
    let server = MariaDb::start(&[]).await.unwrap();
    connect(&server.url()).await;
    server.run("CREATE USER worker@'127.0.0.1'").await.unwrap();
    server.run("GRANT SELECT, INSERT, UPDATE, DELETE ON locks.* TO worker@'127.0.0.1'").await.unwrap();
    let store = connect(&url_of(&server, "worker")).await;
    let entry = request("a", Mode::Exclusive);
    held(&store, &entry).await;
    server.run("SET GLOBAL read_only = ON").await.unwrap();
    for error in
        [refused(&url_of(&server, "worker")).await, store.release(&entry.ticket()).await.unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("read-only"), "{error}");
    }
    server.run("SET GLOBAL read_only = OFF").await.unwrap();
    assert_eq!(store.release(&entry.ticket()).await.unwrap(), Release::Released);
}

#[tokio::test]
async fn the_migration_may_be_run_by_hand() {
    let server = MariaDb::start(&[]).await.unwrap();
    let file = include_str!("../../src/mysql/schema/0001.sql");
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
    let plant = "CREATE TABLE locks.onelock_store (id INT PRIMARY KEY, colour INT); \
                 INSERT INTO locks.onelock_store VALUES (1, 7)";
    server.run(plant).await.unwrap();
    let error = refused(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    assert_eq!(server.count("SELECT colour FROM locks.onelock_store").await.unwrap(), 7);
    server.run("DROP TABLE locks.onelock_store").await.unwrap();
    // The lines of an earlier version, whose tables had other names.
    server.run("DROP TABLE locks.onelock_line, locks.onelock_counter").await.unwrap();
    server.run("CREATE TABLE locks.onelock_line (name VARBINARY(765), number BIGINT)").await.unwrap();
    let error = refused(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    server.run("DROP TABLE locks.onelock_line").await.unwrap();
    connect(&server.url()).await;
    // An engine without transactions.
    server.run("ALTER TABLE locks.onelock_line ENGINE = MyISAM").await.unwrap();
    let error = refused(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    assert!(error.to_string().contains("MyISAM"), "{error}");
    server.run("ALTER TABLE locks.onelock_line ENGINE = InnoDB").await.unwrap();
    // A later version.
    server.run("UPDATE locks.onelock_store SET version = 3").await.unwrap();
    let error = refused(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    server.run("UPDATE locks.onelock_store SET version = 2").await.unwrap();
    connect(&server.url()).await;
    // Rows that are not ours do not get in.
    for row in [
        "'a', 0, 1, '', 'q', 1, 1, 1, 1, ''",
        "'a', 0, 1, '', 'x', 2, 1, 1, 1, ''",
        "'a', 0, 1, '', 'p3', 3, 2, 1, 1, ''",
        "'a', 0, 1, '', 'p3w4', 3, 4, 1, 1, ''",
        "'a', 0, 0, '', 'x', 1, 1, 1, 1, ''",
    ] {
        let planted = server.run(&format!("INSERT INTO locks.onelock_line VALUES ({row})")).await;
        assert!(planted.is_err(), "{row}");
    }
    server
        .run("INSERT INTO locks.onelock_line VALUES ('a', 0, 1, '', 'p3w2', 3, 2, 1, 1, '')")
        .await
        .unwrap();
}

/// Users that MariaDB lets in for a change of their password only, or no more.
#[tokio::test]
async fn a_user_that_is_blocked_or_has_an_old_password_is_denied() {
    let server =
        MariaDb::start(&["--disconnect-on-expired-password=OFF", "--max-password-errors=1"]).await.unwrap();
    for (user, says) in [("expired", "1820"), ("blocked", "4150")] {
        server.run(&format!("CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'pw'")).await.unwrap();
        server.run(&format!("GRANT ALL ON locks.* TO {user}@'127.0.0.1'")).await.unwrap();
        if user == "expired" {
            server.run("ALTER USER expired@'127.0.0.1' PASSWORD EXPIRE").await.unwrap();
        } else {
            refused(&url_of(&server, "blocked:wrong")).await;
        }
        let error = refused(&url_of(&server, &format!("{user}:pw"))).await;
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
}

#[tokio::test]
async fn what_cannot_keep_the_promises_is_said() {
    let server = MariaDb::start(&[]).await.unwrap();
    let error = refused(&format!("mysql://root@127.0.0.1:{}/nowhere", server.port())).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(connect(&server.url()).await.capabilities().durable);
    server.run("SET GLOBAL innodb_flush_log_at_trx_commit = 2").await.unwrap();
    let error = refused(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("innodb_flush_log_at_trx_commit=2") && text.contains("durability=relaxed"),
        "{text}"
    );
    assert!(!connect(&format!("{}?durability=relaxed", server.url())).await.capabilities().durable);
    server.run("SET GLOBAL innodb_flush_log_at_trx_commit = 1").await.unwrap();
    // It is the server that decides.
    assert!(connect(&format!("{}?durability=relaxed", server.url())).await.capabilities().durable);
    // The defaults of a server must not matter.
    let odd = "SET GLOBAL transaction_isolation = 'SERIALIZABLE', \
               GLOBAL sql_mode = 'ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH,TRADITIONAL', GLOBAL time_zone = '+05:30', GLOBAL autocommit = OFF";
    let isolation = if mysqld().is_some() { "transaction_isolation" } else { "tx_isolation" };
    server.run(&odd.replace("transaction_isolation", isolation)).await.unwrap();
    let store = connect(&server.url()).await;
    let entry = request("odd", Mode::Exclusive);
    held(&store, &entry).await;
    let expires = store.inspect(&entry.name).await.unwrap().holders[0].expires_in.unwrap();
    assert!(expires <= entry.lease && expires > entry.lease / 2, "{expires:?}");
    store.release(&entry.ticket()).await.unwrap();
}

/// Tables take the character set of their database where they say none: in one whose letters have two bytes no text is what we write.
#[tokio::test]
async fn the_character_set_of_the_database_does_not_matter() {
    let server = MariaDb::start(&[]).await.unwrap();
    server.run("ALTER DATABASE locks CHARACTER SET utf16").await.unwrap();
    let store = connect(&server.url()).await;
    for mode in [Mode::Exclusive, Mode::Shared, Mode::permit(3).unwrap()] {
        let entry = request(&mode.to_string(), mode);
        held(&store, &entry).await;
        store.release(&entry.ticket()).await.unwrap();
    }
}

/// With a binary log, recovery commits what that log has: it must be on the disk, or InnoDB must flush the commit as well.
#[tokio::test]
async fn a_binary_log_that_is_not_synced_is_refused() {
    let server = MariaDb::start(&["--log-bin=binlog", "--server-id=1", "--sync-binlog=0"]).await.unwrap();
    let error = refused(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let text = error.to_string();
    assert!(text.contains("sync_binlog=0") && text.contains("durability=relaxed"), "{text}");
    assert!(!connect(&format!("{}?durability=relaxed", server.url())).await.capabilities().durable);
    let url = server.url().replace("mysql:", "mysql+session:");
    let session = onelock_conformance::harness::open_by(&onelock_sql::MYSQL_SESSION_DRIVER, &url).await;
    let error = session.map(drop).unwrap_err();
    assert!(error.to_string().contains("sync_binlog=0"), "{error}");
    let mut safe = vec!["SET GLOBAL sync_binlog = 1"];
    if mysqld().is_none() {
        safe.push("SET GLOBAL sync_binlog = 0, GLOBAL innodb_flush_log_at_trx_commit = 3");
    }
    for setting in safe {
        server.run(setting).await.unwrap();
        assert!(connect(&server.url()).await.capabilities().durable, "{setting}");
    }
}

/// Percona XtraDB Cluster has `wsrep_on` for sessions only, as every server has this one.
#[tokio::test]
async fn variables_of_sessions_are_seen() {
    let server = MariaDb::start(&[]).await.unwrap();
    let sql = include_str!("../../src/mysql/sql/variables.sql").replace("wsrep_on", "pseudo_thread_id");
    let found = server.texts(&sql).await.unwrap();
    assert!(found.iter().any(|name| name == "pseudo_thread_id"), "{found:?}");
}

/// A cluster in which several servers take writes is refused, and the message says why.
#[tokio::test]
async fn clusters_with_several_writers_are_refused() {
    let cases: &[(&[&str], &str, &str)] = if mysqld().is_some() {
        &[(
            &[
                "--plugin-load-add=group_replication.so",
                "--loose-group-replication-single-primary-mode=OFF",
                "--loose-group-replication-enforce-update-everywhere-checks=ON",
                "--loose-group-replication-start-on-boot=OFF",
            ],
            "SELECT @@GLOBAL.group_replication_single_primary_mode = 0",
            "several primaries",
        )]
    } else {
        &[
            // Set to be a node, without the library.
            (
                &["--wsrep-on=ON", "--wsrep-provider=none", "--binlog-format=ROW"],
                "SELECT @@GLOBAL.wsrep_on",
                "Galera",
            ),
            // The first node of a real cluster.
            (
                &[
                    "--wsrep-on=ON",
                    "--wsrep-provider=/usr/lib/galera/libgalera_smm.so",
                    "--wsrep-cluster-address=gcomm://",
                    "--wsrep-new-cluster",
                    "--wsrep-node-address=127.0.0.1",
                    "--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:0",
                    "--binlog-format=ROW",
                    "--innodb-autoinc-lock-mode=2",
                ],
                "SELECT VARIABLE_VALUE = 'Primary' FROM information_schema.GLOBAL_STATUS \
                 WHERE VARIABLE_NAME = 'wsrep_cluster_status'",
                "Galera",
            ),
        ]
    };
    for (settings, is_one, says) in cases {
        let server = MariaDb::start(settings).await.unwrap();
        assert_eq!(server.count(is_one).await.unwrap(), 1, "{settings:?}");
        let error = refused(&server.url()).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(
            server.count(OUR_TABLES).await.unwrap(),
            0,
            "tables were made on a server that is refused"
        );
    }
}
