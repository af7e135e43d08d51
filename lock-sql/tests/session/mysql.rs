//! What session locks do on the servers of MySQL and MariaDB.

use std::time::Duration;

use async_trait::async_trait;
use onelock_conformance::servers::mariadb::mysqld;
use onelock_core::{
    Driver, ErrorKind, HolderId, LockName, Locks, Mode, Release, Renewal, Renewed, Request, Standing,
};
use onelock_sql::MYSQL_SESSION_DRIVER;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{ConnectOptions as _, Executor as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::mysql_harness::{locks_sql, start};
use crate::mysql_server::{Admin as _, MariaDb};
use crate::numbers::draw;
use crate::queue::{made_once, no_setting_ends_a_wait};
use crate::server::{Server, acquire, open, soon, tests_on, until_waiting};
use crate::way::{Blow, Way};

#[async_trait]
impl Server for MariaDb {
    const DRIVER: Driver = MYSQL_SESSION_DRIVER;
    // The types of its values: a text only, of 64 bytes.
    const GIVE: &[u8] = b"\x01\xfd\0@";

    async fn start_with(settings: &[&str]) -> Self {
        start(settings).await.unwrap()
    }

    fn at(&self) -> u16 {
        self.port()
    }

    fn url_at(port: u16, options: &str) -> String {
        format!("mysql+session://locker@127.0.0.1:{port}/locks?tls=off{options}")
    }

    async fn crash(&self) {
        self.restart().await.unwrap();
    }

    async fn waiting(&self) -> Vec<String> {
        let sql = "SELECT ID FROM information_schema.PROCESSLIST WHERE STATE = 'User lock' ORDER BY ID";
        self.texts(sql).await.unwrap()
    }

    async fn locks(&self) -> Vec<String> {
        self.texts(locks_sql()).await.unwrap()
    }

    async fn sessions(&self) -> Vec<String> {
        self.texts("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'locker'").await.unwrap()
    }
}

tests_on! { MariaDb }

/// What the server's defaults say about time is for other work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_the_server_end_no_wait() {
    let limit = match mysqld() {
        None => "--max-statement-time=2",
        Some(_) => "--max-execution-time=2000",
    };
    let settings = ["--wait-timeout=3", "--lock-wait-timeout=2", limit, "--autocommit=0"];
    let server = MariaDb::start_with(&settings).await;
    // Nor do those who wait stand in the way of a backup: it would wait for statements that have a table open.
    let backup = "SET SESSION lock_wait_timeout = 20; FLUSH TABLES WITH READ LOCK; UNLOCK TABLES";
    let meanwhile = async { drop(server.run(backup).await.unwrap()) };
    no_setting_ends_a_wait(&server, Duration::from_secs(3), meanwhile).await;
}

/// Others see who holds, with which number, and can end exactly that one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_seen_and_evicted_by_its_number() {
    let server = MariaDb::start_with(&[]).await;
    let (a, b) = (server.open("").await, server.open("").await);
    assert!(b.inspect("Seen").await.unwrap().holders.is_empty());
    let guard = a.mutex("Seen").unwrap().acquire().await.unwrap();
    let token = guard.token().unwrap();
    let seen = b.inspect("Seen").await.unwrap();
    assert_eq!(seen.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [token], "{seen:?}");
    assert!(seen.holders[0].note.contains("of locker@"), "{seen:?}");
    // Spelled otherwise it is another lock, whatever servers say of names.
    assert!(b.inspect("seen").await.unwrap().holders.is_empty());
    // However many numbers others have drawn since.
    server.run("DO BENCHMARK(17000000, UUID_SHORT())").await.unwrap();
    let later = b.inspect("Seen").await.unwrap();
    assert_eq!(later.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [token], "{later:?}");
    let other = onelock_core::FencingToken::new(token.get() + 1).unwrap();
    assert_eq!(b.evict("Seen", other).await.unwrap(), Release::NotHeld);
    assert!(a.inspect("Seen").await.unwrap().holders.len() == 1);
    assert_eq!(b.evict("Seen", token).await.unwrap(), Release::Released);
    let next = b.mutex("Seen").unwrap().try_acquire().await.unwrap().unwrap();
    assert!(next.token().unwrap() > token);
    soon(guard.lost()).await;
}

/// A user who may neither see nor end the sessions of another sees who holds, and is refused an eviction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_user_sees_who_holds() {
    let server = MariaDb::start_with(&[]).await;
    let other = "other@'127.0.0.1'";
    let sql = format!("CREATE USER {other}; GRANT SELECT, UPDATE ON locks.onelock_session TO {other}");
    server.run(&sql).await.unwrap();
    let url = MariaDb::url_at(server.port(), "").replace("locker", "other");
    let (locks, looks) = (server.open("").await, open::<MariaDb>(&url).await.unwrap());
    let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
    let token = guard.token().unwrap();
    let seen = looks.inspect("n").await.unwrap();
    assert_eq!(seen.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [token], "{seen:?}");
    let refused = looks.evict("n", token).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    guard.release().await.unwrap();
}

/// The query of a session that waits is killed, as `pt-kill` and operators do with long queries. The server answers it without an error
/// and keeps the session: nobody holds by that, and who waits joins again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_query_is_killed_does_not_hold() {
    let server = MariaDb::start_with(&[]).await;
    let (a, b) = (server.open("").await, server.open("").await);
    let held = a.mutex("n").unwrap().acquire().await.unwrap();
    let kill = async || {
        let id = until_waiting(&server, 1).await.remove(0);
        server.run(&format!("KILL QUERY {id}")).await.unwrap();
        id
    };
    // Nobody polls the wait of this one.
    let (name, holder) = (LockName::new("n").unwrap(), HolderId::random().unwrap());
    let waiter = Request::new(name, holder, Mode::Exclusive, Duration::from_secs(60));
    let joined = b.backend().acquire(&waiter).await;
    assert!(matches!(joined, Ok(Standing::Waiting(_))), "{joined:?}");
    kill().await;
    until_waiting(&server, 0).await;
    let due = [Renewal::new(waiter.ticket(), waiter.lease, waiter.waiter_lease)];
    let gone = async {
        loop {
            match b.backend().renew(&due).await.remove(0) {
                Ok(Renewed::NotHeld) => return,
                renewed => assert!(renewed.is_err(), "two hold: {renewed:?}"),
            }
        }
    };
    soon(gone).await;
    // This one learns of it at once.
    let next = acquire(&b, "n");
    let id = kill().await;
    let again = async {
        while server.waiting().await.iter().all(|waiting| *waiting == id) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(again).await;
    assert!(held.is_held() && !next.is_finished());
    let token = held.token().unwrap();
    held.release().await.unwrap();
    assert!(soon(next).await.unwrap().unwrap().token().unwrap() > token);
}

/// A table that is not ours, or not there and not to be made, is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_not_ours_is_refused() {
    let server = MariaDb::start_with(&[]).await;
    server.run("CREATE TABLE locks.theirs_session (x INT) ENGINE = MEMORY").await.unwrap();
    server.run("CREATE TABLE locks.other_session (x INT)").await.unwrap();
    let root = |prefix: &str| {
        format!("mysql+session://root@127.0.0.1:{}/locks?tls=off&table_prefix={prefix}", server.port())
    };
    for prefix in ["theirs_", "other_"] {
        let error = open::<MariaDb>(&root(prefix)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign, "{prefix}: {error}");
    }
    let absent = MariaDb::url_at(server.port(), "&table_prefix=absent_");
    let error = open::<MariaDb>(&absent).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("session/mysql/schema/0001.sql"), "{error}");
    // Apart from other tables' locks.
    let (made, _) = made_once::<MariaDb>(&root("made_")).await;
    let guard = made.mutex("x").unwrap().acquire().await.unwrap();
    let apart = server.open("").await;
    assert!(apart.mutex("x").unwrap().try_acquire().await.unwrap().is_some());
    assert!(guard.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_connection_is_waited_for() {
    let server = MariaDb::start_with(&["--max-connections=8"]).await;
    crate::turns::a_refused_connection_is_waited_for(&server).await;
    let schema = if mysqld().is_some() { "performance_schema" } else { "information_schema" };
    let sql = format!(
        "SELECT VARIABLE_VALUE FROM {schema}.global_status WHERE VARIABLE_NAME = 'Connection_errors_max_connections'"
    );
    assert!(server.count(&sql).await.unwrap() > 0, "no connection was refused: this shows nothing");
}

/// Sessions are made where the primary is, whatever stands first in the list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_session_finds_the_primary() {
    let (primary, replica) = (MariaDb::start_with(&[]).await, MariaDb::start_with(&[]).await);
    replica.run("SET GLOBAL read_only = ON").await.unwrap();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", replica.port(), primary.port());
    let by_two = open::<MariaDb>(&format!("mysql+session://locker@{hosts}/locks?tls=off")).await.unwrap();
    let held = primary.open("").await.mutex("n").unwrap().acquire().await.unwrap();
    assert!(by_two.mutex("n").unwrap().try_acquire().await.unwrap().is_none(), "another server's lock");
    held.release().await.unwrap();
    by_two.mutex("n").unwrap().acquire().await.unwrap().release().await.unwrap();
}

/// A planned switch-over: the primary is made read-only, and a replica that has everything takes writes. Connections to the old primary
/// stay open: a client that has some takes no lock there that another one takes on the new primary, and what it holds there is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demoted_primary_keeps_no_lock() {
    let (old, new) = (MariaDb::start_with(&[]).await, MariaDb::start_with(&[]).await);
    new.run("SET GLOBAL read_only = ON").await.unwrap();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", old.port(), new.port());
    let url = format!("mysql+session://locker@{hosts}/locks?tls=off&ttl=3s&request_timeout=2s");
    let before = open::<MariaDb>(&url).await.unwrap();
    let held = before.mutex("held").unwrap().acquire().await.unwrap();
    let waiter = acquire(&before, "held");
    until_waiting(&old, 1).await;
    let last = draw(&before).await;
    switch_over(&old, &new).await;
    let after = open::<MariaDb>(&url).await.unwrap();
    let other = after.mutex("n").unwrap().acquire().await.unwrap();
    assert!(other.token().unwrap().get() > last);
    assert!(before.mutex("n").unwrap().try_acquire().await.unwrap().is_none(), "two hold");
    assert_eq!(before.inspect("n").await.unwrap().holders.len(), 1, "it looks at the old primary");
    soon(held.lost()).await;
    let next = soon(waiter).await.unwrap().unwrap();
    assert!(
        after.mutex("held").unwrap().try_acquire().await.unwrap().is_none(),
        "it holds on the old primary"
    );
    next.release().await.unwrap();
}

/// Who has to wait on the new primary is looked for there, although the connection that looks leads to the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_on_the_new_primary_has_a_place_there() {
    let (old, new) = (MariaDb::start_with(&[]).await, MariaDb::start_with(&[]).await);
    new.run("SET GLOBAL read_only = ON").await.unwrap();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", old.port(), new.port());
    let url = format!("mysql+session://locker@{hosts}/locks?tls=off&request_timeout=2s");
    let before = open::<MariaDb>(&url).await.unwrap();
    switch_over(&old, &new).await;
    let after = open::<MariaDb>(&url).await.unwrap();
    let held = after.mutex("n").unwrap().acquire().await.unwrap();
    let (name, holder) = (LockName::new("n").unwrap(), HolderId::random().unwrap());
    let waiter = Request::new(name, holder, Mode::Exclusive, Duration::from_secs(60));
    let joined = before.backend().acquire(&waiter).await;
    assert!(matches!(joined, Ok(Standing::Waiting(_))), "{joined:?}");
    held.release().await.unwrap();
}

/// The primary is made read-only, and the replica, which has everything, takes writes.
async fn switch_over(old: &MariaDb, new: &MariaDb) {
    old.run("SET GLOBAL read_only = ON").await.unwrap();
    let columns =
        "CONCAT('space = x^', HEX(space), '^, life = ', life, ', shift = ', shift, ', ceiling = ', ceiling)";
    let row = old.texts(&format!("SELECT {columns} FROM locks.onelock_session")).await.unwrap().remove(0);
    let row = row.replace('^', "'");
    new.run(&format!("UPDATE locks.onelock_session SET {row}; SET GLOBAL read_only = OFF")).await.unwrap();
}

/// A primary falls silent while somebody waits there, and on the new one a session with the same id waits for another lock: who waits
/// joins again on the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_another_server_says_nothing_of_a_place() {
    let (old, new) = (MariaDb::start_with(&[]).await, MariaDb::start_with(&[]).await);
    new.run("SET GLOBAL read_only = ON").await.unwrap();
    // Ids that the new one has not given yet.
    while new_id(&old).await < 100 {}
    let way = Way::to(old.port()).await;
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", way.port(), new.port());
    let url = format!("mysql+session://locker@{hosts}/locks?tls=off&ttl=12s&request_timeout=1s");
    let locks = open::<MariaDb>(&url).await.unwrap();
    let held = old.open("").await.mutex("n").unwrap().acquire().await.unwrap();
    let waiter = acquire(&locks, "n");
    let id: u64 = until_waiting(&old, 1).await[0].parse().unwrap();
    let as_locker = MySqlConnectOptions::new().host("127.0.0.1").port(new.port()).username("locker");
    let mut same = as_locker.connect().await.unwrap();
    while sqlx::query_scalar::<_, u64>("SELECT CONNECTION_ID()").fetch_one(&mut same).await.unwrap() < id {
        same = as_locker.connect().await.unwrap();
    }
    let mut before = new.admin().await.unwrap();
    before.execute("DO GET_LOCK('other', 0)").await.unwrap();
    let waits = tokio::spawn(async move { same.execute("DO GET_LOCK('other', 1000)").await.map(drop) });
    assert_eq!(until_waiting(&new, 1).await, [id.to_string()]);
    way.strike(0..way.count(), Blow::Silence).await;
    old.run("SET GLOBAL read_only = ON").await.unwrap();
    new.run("SET GLOBAL read_only = OFF").await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    assert!(!waits.is_finished(), "this shows nothing");
    guard.release().await.unwrap();
    drop((held, before));
}

/// The way to one client puts the id of a third session into replies: where the client evicts another holder, and where it is told
/// which session its own is. Neither ends the third.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_altered_id_ends_nobody_elses_session() {
    let server = MariaDb::start_with(&[]).await;
    // From here on all ids have two digits.
    while new_id(&server).await < 10 {}
    let (a, b) = (server.open("").await, server.open("").await);
    let third = a.mutex("third").unwrap().acquire().await.unwrap();
    let evicted = b.mutex("evicted").unwrap().acquire().await.unwrap();
    let id = id_of_holder(&a, "third").await;
    let port = altering(server.port(), vec![id_of_holder(&b, "evicted").await], id).await;
    let c = open::<MariaDb>(&MariaDb::url_at(port, "")).await.unwrap();
    assert_eq!(c.evict("evicted", evicted.token().unwrap()).await.unwrap(), Release::Released);
    soon(evicted.lost()).await;

    // It asks for its tables on the first, and the others are sessions.
    let next = new_id(&server).await + 1;
    let port = altering(server.port(), (next..next + 4).collect(), id).await;
    let error = open::<MariaDb>(&MariaDb::url_at(port, "")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    third.release().await.unwrap();
}

/// The id of a new session. The next one has the next.
async fn new_id(server: &MariaDb) -> u64 {
    server.count("SELECT CONNECTION_ID()").await.unwrap()
}

async fn id_of_holder(locks: &Locks, name: &str) -> u64 {
    let note = &locks.inspect(name).await.unwrap().holders[0].note;
    note.split(' ').nth(1).unwrap().parse().unwrap()
}

/// The port of a way to the server that puts the id `told` once in place of one of `real` into what it is answered at a time.
async fn altering(server: u16, real: Vec<u64>, told: u64) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // A value in a row of text, with its length in front.
    let text = |id: u64| format!("\u{2}{id}").into_bytes();
    let (real, told): (Vec<_>, _) = (real.into_iter().map(text).collect(), text(told));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
            let (mut requests, mut to_client) = client.into_split();
            let (mut replies, mut to_server) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut requests, &mut to_server).await });
            let (real, told) = (real.clone(), told.clone());
            tokio::spawn(async move {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(count @ 1..) = replies.read(&mut bytes).await {
                    let piece = &mut bytes[..count];
                    if let Some(at) = piece.windows(3).position(|part| real.iter().any(|id| id == part)) {
                        piece[at..at + 3].copy_from_slice(&told);
                    }
                    to_client.write_all(piece).await?;
                }
                std::io::Result::Ok(())
            });
        }
    });
    port
}
