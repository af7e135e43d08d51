//! Locks in the way, a server that goes away, futures that are dropped.

use std::sync::Arc;
use std::time::Duration;

use onelock_conformance::ctx::cut_at;
use onelock_core::{Backend, ErrorKind, Locks, Mode, Page, Release, Renewal, Renewed, Standing, Wake};
use sqlx::{AssertSqlSafe, Executor as _, MySqlConnection, Row as _};

use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::{LONG, connect, held, name, request, ticket, waiting};

/// How many statements wait for a row just now. INNODB_TRX would not do: whoever asks for it more often than each 100 ms reads the same
/// state for ever.
const ROW_WAITS: &str =
    "SELECT COUNT FROM information_schema.INNODB_METRICS WHERE NAME = 'lock_row_lock_current_waits'";

/// An acquire and a release are prepared, on MariaDB; texts do where the server prepares no more.
#[tokio::test]
async fn what_cannot_be_prepared_is_sent_as_text() {
    let server = MariaDb::start(&[]).await.unwrap();
    let mut admin = server.admin().await.unwrap();
    let blocks: bool = admin.fetch_one("SELECT VERSION() LIKE '%MariaDB%'").await.unwrap().get(0);
    for most in [100, 0] {
        admin.execute(AssertSqlSafe(format!("SET GLOBAL max_prepared_stmt_count = {most}"))).await.unwrap();
        let store = connect(&server.url()).await;
        let executed = async |admin: &mut MySqlConnection| {
            let sql = "SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'";
            admin.fetch_one(sql).await.unwrap().get::<String, _>(1).parse::<u32>().unwrap()
        };
        let before = executed(&mut admin).await;
        for _ in 0..2 {
            let holder = request("n", Mode::Exclusive);
            held(&store, &holder).await;
            let busy = store.acquire(&request("n", Mode::Exclusive).queue(false)).await.unwrap();
            assert!(matches!(busy, Standing::Busy(_)), "{busy:?}");
            assert_eq!(store.release(&holder.ticket()).await.unwrap(), Release::Released);
        }
        let executed = executed(&mut admin).await - before;
        assert_eq!(executed, if blocks && most > 0 { 6 } else { 0 }, "at most {most} are prepared");
    }
}

/// A row lock of somebody else is waited for, within the request timeout.
#[tokio::test]
async fn row_locks_are_waited_for() {
    let server = MariaDb::start(&[]).await.unwrap();
    let store = Arc::new(connect(&format!("{}?request_timeout=20s", server.url())).await);
    let hasty = connect(&format!("{}?request_timeout=300ms", server.url())).await;
    let first = request("locked", Mode::Exclusive);
    held(&*store, &first).await;
    let mut other = server.admin().await.unwrap();
    other.execute("START TRANSACTION").await.unwrap();
    other
        .execute("SELECT * FROM locks.onelock_line WHERE name = 'locked' AND slot = 0 FOR UPDATE")
        .await
        .unwrap();
    let counter = "SELECT * FROM locks.onelock_counter WHERE bucket = CRC32('locked') % 1024 FOR UPDATE";
    other.execute(counter).await.unwrap();
    let waits = tokio::spawn({
        let (store, first) = (Arc::clone(&store), first.clone());
        async move { store.release(&first.ticket()).await }
    });
    let error = hasty.acquire(&request("locked", Mode::Exclusive)).await.unwrap_err();
    assert!(error.is_unclear(), "{error}");
    assert!(!waits.is_finished());
    // A name beside it is not in the way of anybody.
    held(&hasty, &request("free", Mode::Exclusive)).await;
    other.execute("ROLLBACK").await.unwrap();
    assert_eq!(waits.await.unwrap().unwrap(), Release::Released);
}

/// A row lock of somebody else that stays for longer than the server lets a statement wait: the verb asks again by
/// itself, and gets on when the lock has gone.
#[tokio::test]
async fn lock_wait_timeouts_are_tried_again() {
    let server = MariaDb::start(&[]).await.unwrap();
    for options in ["", "&blocks=false"] {
        // The server gives up a wait after a quarter of the request timeout.
        let store = Arc::new(connect(&format!("{}?request_timeout=11s{options}", server.url())).await);
        let first = request("slow", Mode::Exclusive);
        let grant = held(&*store, &first).await;
        let mut other = server.admin().await.unwrap();
        other.execute("START TRANSACTION").await.unwrap();
        other.execute("SELECT * FROM locks.onelock_line WHERE name = 'slow' FOR UPDATE").await.unwrap();
        let timeouts = "SELECT COUNT FROM information_schema.INNODB_METRICS WHERE NAME = 'lock_timeouts'";
        let before = server.count(timeouts).await.unwrap();
        let renewal = onelock_core::Renewal::new(first.ticket(), first.lease, first.lease);
        let waits = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.renew(&[renewal]).await }
        });
        while server.count(timeouts).await.unwrap() == before {
            assert!(!waits.is_finished(), "{:?}", waits.await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        other.execute("ROLLBACK").await.unwrap();
        let answers = waits.await.unwrap();
        assert!(
            matches!(answers[..], [Ok(onelock_core::Renewed::Held(again))] if again.token == grant.token),
            "{answers:?}"
        );
        store.release(&first.ticket()).await.unwrap();
    }
}

/// An acquire whose wait for a row was in vain, and that nobody polls any more, keeps nothing locked.
#[tokio::test]
async fn a_verb_that_failed_and_stalls_keeps_nothing_locked() {
    let server = MariaDb::start(&[]).await.unwrap();
    let (store, there) = (connect(&server.url()).await, connect(&server.url()).await);
    let mut expired = request("still", Mode::Exclusive);
    expired.lease = Duration::from_millis(1);
    held(&store, &expired).await;
    let mut other = server.admin().await.unwrap();
    other.execute("START TRANSACTION").await.unwrap();
    // The row alone, without the gaps beside it.
    let row = "SELECT * FROM locks.onelock_line WHERE name = 'still' AND slot = 0 FOR UPDATE";
    other.execute(row).await.unwrap();
    let next = request("still", Mode::Exclusive);
    let mut call = store.acquire(&next);
    while server.count(ROW_WAITS).await.unwrap() == 0 {
        assert!(futures_util::poll!(&mut call).is_pending());
    }
    let end = std::time::Instant::now() + LONG;
    while server.count(ROW_WAITS).await.unwrap() > 0 {
        assert!(std::time::Instant::now() < end, "it waits for ever");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Whose counter is the same.
    let beside = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 127)
        SELECT CONCAT(a.i, '-', b.i) FROM n a JOIN n b
        WHERE CRC32(CONCAT(a.i, '-', b.i)) % 1024 = CRC32('still') % 1024 LIMIT 1";
    let beside = server.texts(beside).await.unwrap().remove(0);
    held(&there, &request(&beside, Mode::Exclusive)).await;
    drop(call);
}

/// A renewal has begun in time and stalls until the lease has ended: nobody is told that it holds meanwhile.
#[tokio::test]
async fn a_renewal_that_stalls_is_not_passed_by() {
    let server = MariaDb::start(&[]).await.unwrap();
    let store = Arc::new(connect(&format!("{}?request_timeout=20s", server.url())).await);
    let there = connect(&server.url()).await;
    let (mut first, next) = (request("stands", Mode::Exclusive), request("stands", Mode::Exclusive));
    first.lease = Duration::from_secs(2);
    let grant = held(&*store, &first).await;
    let place = waiting(&there, &next).await;
    let mut other = server.admin().await.unwrap();
    other.execute("START TRANSACTION").await.unwrap();
    let row = "SELECT * FROM locks.onelock_line WHERE name = 'stands' AND slot = 0 FOR UPDATE";
    other.execute(row).await.unwrap();
    let renewal = Renewal::new(first.ticket(), first.lease, first.lease);
    let renewed = tokio::spawn(async move { store.renew(&[renewal]).await.remove(0) });
    while server.count(ROW_WAITS).await.unwrap() == 0 {
        assert!(!renewed.is_finished());
    }
    let wake = there.wait(&ticket(&next, place.token.unwrap())).await.unwrap();
    other.execute("ROLLBACK").await.unwrap();
    let renewed = renewed.await.unwrap().unwrap();
    assert!(matches!(renewed, Renewed::Held(again) if again.token == grant.token), "{renewed:?}");
    assert_eq!(wake, Wake::Ask, "both hold");
}

/// Somebody has changed the row of one of the locks of a client and not committed: the others are renewed.
#[tokio::test]
async fn a_transaction_that_was_left_open_costs_no_other_lease() {
    // The second server ends statements before a wait for a row does.
    for settings in [&[][..], &["--max-statement-time=0.5"]] {
        let server = MariaDb::start(settings).await.unwrap();
        let store = connect(&server.url()).await;
        let (one, other) = (request("one", Mode::Exclusive), request("other", Mode::Exclusive));
        for request in [&one, &other] {
            held(&store, request).await;
        }
        let mut forgotten = server.admin().await.unwrap();
        forgotten.execute("START TRANSACTION").await.unwrap();
        forgotten
            .execute("UPDATE locks.onelock_line SET note = '' WHERE name = 'one' AND slot = 0")
            .await
            .unwrap();
        let due = [&one, &other].map(|request| Renewal::new(request.ticket(), request.lease, request.lease));
        let renewed = store.renew(&due).await;
        assert!(renewed[0].as_ref().is_err_and(onelock_core::Error::is_unclear), "{renewed:?}");
        assert!(matches!(renewed[1], Ok(Renewed::Held(_))), "{renewed:?}");
    }
}

/// Nor does the time cost one in which the renewal in the way is tried.
#[tokio::test]
async fn a_renewal_in_vain_keeps_no_other_waiting() {
    let server = MariaDb::start(&[]).await.unwrap();
    let store = connect(&format!("{}?request_timeout=10s", server.url())).await;
    let locks = Locks::builder(Arc::new(store)).build().unwrap();
    let take = async |name| {
        locks.mutex(name).unwrap().ttl(Duration::from_secs(12)).unwrap().acquire().await.unwrap()
    };
    let (_one, other) = (take("one").await, take("other").await);
    let seen = other.deadline();
    let mut forgotten = server.admin().await.unwrap();
    forgotten.execute("START TRANSACTION").await.unwrap();
    let row = "SELECT * FROM locks.onelock_line WHERE name = 'one' AND slot = 0 FOR UPDATE";
    forgotten.execute(row).await.unwrap();
    other.renewed(seen).await.expect("lost with the other one");
}

/// Group replication answers 3101 to a commit that another one came before, as while a new primary catches up.
#[tokio::test]
async fn a_commit_that_a_group_has_refused_is_tried_again() {
    is_tried_again(3101).await;
}

/// A server with many tables and little room for their definitions, or one that is flushed, answers 1615 to what is prepared.
#[tokio::test]
async fn what_would_have_to_be_prepared_again_is_sent_as_text() {
    is_tried_again(1615).await;
}

async fn is_tried_again(error: u16) {
    let server = MariaDb::start(&[]).await.unwrap();
    let store = connect(&format!("{}?connections=1", server.url())).await;
    let refuses_once = format!(
        "CREATE TRIGGER locks.refuses BEFORE INSERT ON locks.onelock_line FOR EACH ROW IF @refused IS NULL THEN \
         SET @refused = 1; SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {error}; END IF"
    );
    server.run(&refuses_once).await.unwrap();
    held(&store, &request("n", Mode::Exclusive)).await;
}

/// A deadlock is resolved by the server at the cost of one side, and that one tries again.
#[tokio::test]
async fn deadlocks_are_tried_again() {
    let server = MariaDb::start(&[]).await.unwrap();
    let store = Arc::new(connect(&format!("{}?request_timeout=30s", server.url())).await);
    let (a, b) = (request("a", Mode::Exclusive), request("b", Mode::Exclusive));
    held(&*store, &a).await;
    held(&*store, &b).await;
    for round in 0..5 {
        let mut other = server.admin().await.unwrap();
        other.execute("START TRANSACTION").await.unwrap();
        // Weighs more than a renewal, so that the server ends the renewal.
        other
            .execute("CREATE TEMPORARY TABLE IF NOT EXISTS locks.heavy (n INT) ENGINE = InnoDB")
            .await
            .unwrap();
        other.execute("INSERT INTO locks.heavy WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 500) SELECT n FROM s").await.unwrap();
        // Counters are locked in the order of their numbers.
        let counter = |which: &str| {
            let both = "(SELECT CRC32('a') % 1024 UNION SELECT CRC32('b') % 1024)";
            let one = format!("SELECT {which}(bucket) FROM locks.onelock_counter WHERE bucket IN {both}");
            format!("SELECT * FROM locks.onelock_counter WHERE bucket = ({one}) FOR UPDATE")
        };
        other.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(counter("MAX")))).await.unwrap();
        let due = [&a, &b].map(|entry| onelock_core::Renewal::new(entry.ticket(), entry.lease, entry.lease));
        let renewing = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.renew(&due).await }
        });
        // The renewal has the first and waits for the last.
        while server.count(ROW_WAITS).await.unwrap() == 0 {
            assert!(!renewing.is_finished(), "{:?}", renewing.await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        other.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(counter("MIN")))).await.ok();
        other.execute("ROLLBACK").await.unwrap();
        let answers = renewing.await.unwrap();
        assert!(
            answers.iter().all(|a| matches!(a, Ok(onelock_core::Renewed::Held(_)))),
            "{round}: {answers:?}"
        );
    }
    let deadlocks = "SELECT COUNT FROM information_schema.INNODB_METRICS WHERE NAME = 'lock_deadlocks'";
    assert!(server.count(deadlocks).await.unwrap() > 0, "there was no deadlock");
}

/// After a restart of the server the first request of every idle connection succeeds, and locks are still held.
#[tokio::test]
async fn a_restart_is_survived() {
    let server = MariaDb::start(&[]).await.unwrap();
    let store = connect(&server.url()).await;
    let first = request("kept", Mode::Exclusive);
    let grant = held(&store, &first).await;
    let second = request("kept", Mode::Exclusive);
    let place = waiting(&store, &second).await;
    let ticket = ticket(&second, place.token.unwrap());
    let mut wait = std::pin::pin!(store.wait(&ticket));
    assert!(futures_util::poll!(&mut wait).is_pending());
    server.restart().await.unwrap();
    let again = held(&store, &first).await;
    assert_eq!(again.token, grant.token);
    assert_eq!(store.release(&first.ticket()).await.unwrap(), Release::Released);
    let wake = tokio::time::timeout(Duration::from_secs(30), wait).await.unwrap().unwrap();
    assert_eq!(wake, onelock_core::Wake::Held(place.token.unwrap()));
}

/// Futures that are dropped at any moment leave no transaction open and no connection in use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_futures_leave_no_transaction() {
    let server = MariaDb::start(&[]).await.unwrap();
    let store = connect(&format!("{}?pool=3", server.url())).await;
    let mut cut = 0;
    for i in 0..300_u64 {
        let entry = request("dropped", Mode::Exclusive);
        let limit = Duration::from_micros(i * 7);
        cut += u32::from(cut_at(store.acquire(&entry), limit).await.is_none());
        let page = Page::first(10).unwrap();
        cut += u32::from(cut_at(store.list("d", &page), limit).await.is_none());
        let _ = store.release(&entry.ticket()).await.unwrap();
    }
    assert!(cut > 20, "{cut} were cut: nothing was proven");
    let open = "SELECT COUNT(*) FROM information_schema.INNODB_TRX";
    let none = async {
        while server.count(open).await.unwrap() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), none).await.unwrap();
    // Acquires that the server carried out after their release was answered are in the line yet; nothing else is wrong.
    for view in store.inspect(&name("dropped")).await.unwrap().holders {
        store.evict(&name("dropped"), view.token).await.unwrap();
    }
    assert!(matches!(store.acquire(&request("after", Mode::Exclusive)).await.unwrap(), Standing::Held(_)));
}

/// A backend outlives the runtime it was made in: dropping it is quiet, and using it on another one works or fails with an
/// error.
#[test]
fn runtimes_come_and_go() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let first = runtime();
    let (server, store, entry) = first.block_on(async {
        let server = MariaDb::start(&[]).await.unwrap();
        let store = Arc::new(connect(&server.url()).await);
        let entry = request("moved", Mode::Exclusive);
        held(&*store, &entry).await;
        (server, store, entry)
    });
    let second = request("moved", Mode::Exclusive);
    let place = first.block_on(waiting(&*store, &second));
    let second = ticket(&second, place.token.unwrap());
    let waiter = {
        let (store, second) = (Arc::clone(&store), second.clone());
        first.spawn(async move { store.wait(&second).await })
    };
    first.shutdown_timeout(Duration::from_secs(5));
    drop(waiter);
    let other = runtime();
    other.block_on(async {
        // The connections of the first runtime are gone with it; the next are made here.
        match store.release(&entry.ticket()).await {
            Ok(released) => assert_eq!(released, Release::Released),
            // The request may have gone out on a connection whose answers nobody reads any more.
            Err(error) => assert!(error.is_unclear(), "{error}"),
        }
        let held = async {
            // The end of the first runtime has every waiter ask.
            loop {
                match store.wait(&second).await.unwrap() {
                    onelock_core::Wake::Ask => {}
                    wake => return wake,
                }
            }
        };
        let wake = tokio::time::timeout(Duration::from_secs(30), held).await.unwrap();
        assert_eq!(wake, onelock_core::Wake::Held(place.token.unwrap()));
        store.close().await.unwrap();
        assert_eq!(store.inspect(&name("moved")).await.unwrap_err().kind(), ErrorKind::Closed);
    });
    drop(other);
    drop(store);
    drop(server);
}

/// Whatever answers on the port: an error, never a panic, never a backend.
#[tokio::test]
async fn what_is_no_server_is_an_error() {
    use tokio::io::AsyncWriteExt as _;
    let greetings: [&[u8]; 7] = [
        b"",
        b"\0\0\0\0",
        b"\x01\0\0\0\x0a",
        b"\x05\0\0\0\xff\x10\x04no",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\xff\xff\xff\0",
        b"\x30\0\0\0\x0a8.0.0\0\x01\0\0\0aaaaaaaa\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    ];
    for (i, greeting) in greetings.into_iter().enumerate() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                // Half of what comes is read by nobody; that is part of it.
                let _ = client.write_all(greeting).await;
                let _ = client.shutdown().await;
            }
        });
        let url = format!("mysql://u:hunter2@127.0.0.1:{port}/locks?connect_timeout=2s&request_timeout=2s");
        let error = onelock_sql::MySqlBackend::connect(crate::support::config(&url)).await.unwrap_err();
        let kinds = [ErrorKind::Protocol, ErrorKind::Unavailable, ErrorKind::Denied];
        assert!(kinds.contains(&error.kind()), "{i}: {error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        server.abort();
    }
}

/// What a crash in the middle of an eviction leaves: nobody holds, and nobody was let in. Here the second of its two
/// requests is refused.
#[tokio::test]
async fn an_eviction_takes_the_holder_before_the_entry() {
    let server = MariaDb::start(&[]).await.unwrap();
    let store = connect(&server.url()).await;
    let (first, second) = (request("a", Mode::Exclusive), request("a", Mode::Exclusive));
    let grant = held(&store, &first).await;
    waiting(&store, &second).await;
    server.run("CREATE USER evictor@'127.0.0.1'").await.unwrap();
    for table in ["counter", "line", "store"] {
        let rights = format!("SELECT, INSERT, UPDATE, DELETE ON locks.onelock_{table}");
        server.run(&format!("GRANT {rights} TO evictor@'127.0.0.1'")).await.unwrap();
    }
    let other = connect(&server.url().replace("root@", "evictor@")).await;
    server.run("REVOKE DELETE ON locks.onelock_line FROM evictor@'127.0.0.1'").await.unwrap();
    let error = other.evict(&name("a"), grant.token).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let due = [&first, &second].map(|entry| Renewal::new(entry.ticket(), entry.lease, entry.lease));
    let answers = store.renew(&due).await;
    assert!(matches!(answers[..], [Ok(Renewed::NotHeld), Ok(Renewed::Waiting(_))]), "{answers:?}");
    assert_eq!(store.release(&first.ticket()).await.unwrap(), Release::NotHeld);
    assert_eq!(store.evict(&name("a"), grant.token).await.unwrap(), Release::Released);
    let answers = store.renew(&due[1..]).await;
    assert!(matches!(answers[..], [Ok(Renewed::Held(_))]), "{answers:?}");
}
