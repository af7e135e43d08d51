//! What survives when the server is killed in the middle of its work. A server that writes its log rarely loses with its
//! process what it would lose with the power: all that no commit waited for.

use std::time::{Duration, Instant};

use onelock_core::store::Checked;
use onelock_core::{Backend, FencingToken, Locks, Note, Release, Renewal, Renewed, Request, Standing};
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use crate::postgres_server::{Admin as _, PostgresServer};
use crate::server::open;
use crate::sharing::request;

/// The log is written when a commit waits for it, or when pages are full.
const RARELY: &[&str] = &["wal_writer_delay=10s", "autovacuum=off"];

async fn held(store: &Checked<onelock_sql::PostgresBackend>, request: &Request) -> FencingToken {
    match store.acquire(request).await.unwrap() {
        Standing::Held(grant) => grant.token,
        other => panic!("{other:?}"),
    }
}

/// Kills one session, upon which the server throws away all memory and recovers.
async fn kill_a_session(server: &PostgresServer) {
    let (mut victim, mut other) = (server.admin().await.unwrap(), server.admin().await.unwrap());
    let pid: i32 = victim.fetch_one("SELECT pg_backend_pid()").await.unwrap().get(0);
    std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    // It ends all other sessions when it notices; until then it would take new ones, and end those, too.
    while other.execute("SELECT 1").await.is_ok() {
        assert!(Instant::now() < end, "the server does not notice");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    while server.admin().await.is_err() {
        assert!(Instant::now() < end, "the server does not recover");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn what_was_answered_survives_a_kill() {
    let server = PostgresServer::start(RARELY).await.unwrap();
    let store = open(&server.url()).await;
    for round in 0..4 {
        let (first, second) = (request("n"), request("n"));
        let grant = held(&store, &first).await;
        let due = |request: &Request, lease| Renewal::new(request.ticket(), lease, request.waiter_lease);
        let longer = Duration::from_secs(3_000);
        let renews =
            async || assert!(matches!(store.renew(&[due(&first, longer)]).await[0], Ok(Renewed::Held(_))));
        // What comes last is on the disk for its own sake: in two rounds a join behind others, in two a renewal.
        if round < 2 {
            renews().await;
        }
        let Standing::Waiting(place) = store.acquire(&second).await.unwrap() else { panic!() };
        if round >= 2 {
            renews().await;
        }
        if round % 2 == 1 {
            kill_a_session(&server).await;
        } else {
            server.restart().await.unwrap();
        }
        let mut admin = server.admin().await.unwrap();
        let sql = "SELECT extract(epoch FROM max(ends) - clock_timestamp())::float8 FROM onelock.line";
        let left: f64 = admin.fetch_one(sql).await.unwrap().get(0);
        assert!(left > 2_000.0, "the renewal is lost: {left}");
        let answers = store.renew(&[due(&first, longer), due(&second, longer)]).await;
        assert!(matches!(answers[0], Ok(Renewed::Held(g)) if g.token == grant), "{answers:?}");
        assert!(matches!(answers[1], Ok(Renewed::Waiting(p)) if p.token == place.token), "{answers:?}");
        for request in [&second, &first] {
            assert_eq!(store.release(&request.ticket()).await.unwrap(), Release::Released);
        }
    }
}

#[tokio::test]
async fn relaxed_tokens_grow_over_kills_that_take_entries_with_them() {
    let server = PostgresServer::start(RARELY).await.unwrap();
    let store = open(&format!("{}?durability=relaxed", server.url())).await;
    assert!(!store.capabilities().durable);
    let (mut last, mut forgotten) = (None, 0_usize);
    for round in 0..20 {
        // Through a block's end in some rounds, and not in others.
        for _ in 0..[3, 1_200, 150][round % 3] {
            let request = request("n");
            let token = held(&store, &request).await;
            assert!(last < Some(token), "{last:?} then {token} in round {round}");
            last = Some(token);
            assert_eq!(store.release(&request.ticket()).await.unwrap(), Release::Released);
        }
        let before = request("n");
        let token = held(&store, &before).await;
        assert!(last < Some(token), "{last:?} then {token} in round {round}");
        last = Some(token);
        if round % 2 == 0 {
            server.restart().await.unwrap();
        } else {
            kill_a_session(&server).await;
        }
        let mut admin = server.admin().await.unwrap();
        let sql = format!("SELECT count(*) FROM onelock.line WHERE token = {token}");
        let there: i64 = admin.fetch_one(AssertSqlSafe(sql)).await.unwrap().get(0);
        // What the page warns of: an entry that was answered is gone.
        forgotten += usize::from(there == 0);
        // And releases of the last moment are: their entries are back.
        admin.execute("DELETE FROM onelock.line").await.unwrap();
        if forgotten > 1 && round >= 6 {
            break;
        }
    }
    assert!(forgotten > 0, "no kill lost anything: this shows nothing");
}

/// A release of the last moment is forgotten, and with it that the next one leads. Who observes hears of no leader who has left.
#[tokio::test]
async fn a_leader_who_has_left_is_not_seen_again() {
    let server = PostgresServer::start(RARELY).await.unwrap();
    let store = std::sync::Arc::new(open(&server.url()).await);
    let locks = Locks::builder(store.clone()).build().unwrap();
    let election = locks.election("n").unwrap().ttl(Duration::from_secs(2)).unwrap();
    let [first, second, third] = ["a", "b", "c"].map(|note| request("n").note(Note::new(note).unwrap()));
    let mut seen = election.observe();
    held(&store, &first).await;
    assert_eq!(seen.next().await.unwrap().note, "a");
    store.acquire(&second).await.unwrap();
    store.release(&first.ticket()).await.unwrap();
    assert_eq!(seen.next().await.unwrap().note, "b");
    server.restart().await.unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while !election.leader().await.is_ok_and(|leader| leader.is_some_and(|leader| leader.note == "a")) {
        assert!(Instant::now() < end, "the release is there: this shows nothing");
    }
    // Several of its requests.
    let again = tokio::time::timeout(Duration::from_secs(1), seen.next()).await;
    assert!(again.is_err(), "{again:?}");
    store.acquire(&third).await.unwrap();
    for left in [&first, &second] {
        assert_eq!(store.release(&left.ticket()).await.unwrap(), Release::Released);
    }
    assert_eq!(seen.next().await.unwrap().note, "c");
}
