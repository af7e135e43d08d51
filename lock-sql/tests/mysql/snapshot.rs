//! An open snapshot keeps every deleted row in its index. What a verb reads must not grow with them.

use std::sync::Arc;

use onelock_core::store::Checked;
use onelock_core::{Backend as _, Mode, Renewal, Renewed, Wake};
use onelock_sql::MySqlBackend;
use sqlx::{Executor as _, Row as _};

use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::{LONG, connect, held, request, ticket, waiting};

/// Pages looked at by the server, and rows read: both since its start.
async fn work(server: &MariaDb) -> [u64; 2] {
    let rows = server
        .run("SHOW GLOBAL STATUS WHERE Variable_name = 'Innodb_buffer_pool_read_requests' OR Variable_name LIKE 'Handler_read%'")
        .await
        .unwrap();
    let mut sums = [0; 2];
    for row in rows {
        let name: Vec<u8> = row.get_unchecked(0);
        let value: Vec<u8> = row.get_unchecked(1);
        sums[usize::from(name.starts_with(b"Handler"))] +=
            String::from_utf8(value).unwrap().parse::<u64>().unwrap();
    }
    sums
}

async fn cycle(store: &Checked<MySqlBackend>, on: &str) {
    let entry = request(on, Mode::Exclusive);
    let token = held(store, &entry).await.token;
    store.release(&ticket(&entry, token)).await.unwrap();
}

/// One client takes over from another: a join, a wait, a release, a renewal, a release.
async fn hand_over(store: &Arc<Checked<MySqlBackend>>, other: &Checked<MySqlBackend>, on: &str) {
    let (first, second) = (request(on, Mode::Exclusive), request(on, Mode::Exclusive));
    let token = held(other, &first).await.token;
    let place = waiting(&**store, &second).await;
    let told = tokio::spawn({
        let (store, ticket) = (Arc::clone(store), ticket(&second, place.token.unwrap()));
        async move { store.wait(&ticket).await }
    });
    other.release(&ticket(&first, token)).await.unwrap();
    let told = tokio::time::timeout(LONG, told).await.unwrap().unwrap().unwrap();
    assert_eq!(told, Wake::Held(place.token.unwrap()));
    let due = Renewal::new(ticket(&second, place.token.unwrap()), LONG, LONG);
    assert!(matches!(store.renew(&[due]).await[..], [Ok(Renewed::Held(_))]));
    store.release(&ticket(&second, place.token.unwrap())).await.unwrap();
}

/// The least that a hand-over takes, of some: house-keeping in the background only adds.
async fn least(
    server: &MariaDb,
    store: &Arc<Checked<MySqlBackend>>,
    other: &Checked<MySqlBackend>,
) -> [u64; 2] {
    let mut least = [u64::MAX; 2];
    for _ in 0..20 {
        let before = work(server).await;
        hand_over(store, other, "busy").await;
        let after = work(server).await;
        for i in 0..2 {
            least[i] = least[i].min(after[i] - before[i]);
        }
    }
    least
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_under_an_open_snapshot_costs_the_same() {
    let server = MariaDb::start(&[]).await.unwrap();
    let (store, other) = (Arc::new(connect(&server.url()).await), connect(&server.url()).await);
    cycle(&store, "busy").await;
    let mut snapshot = server.admin().await.unwrap();
    snapshot.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    snapshot.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT").await.unwrap();
    snapshot.execute("SELECT COUNT(*) FROM locks.onelock_line").await.unwrap();
    let before = least(&server, &store, &other).await;
    for _ in 0..4000 {
        cycle(&store, "busy").await;
    }
    let after = least(&server, &store, &other).await;
    println!("pages and rows of a hand-over: {before:?}, {after:?} after 4000 cycles under an open snapshot");
    for i in 0..2 {
        assert!(after[i] <= before[i] * 3 / 2 + 20, "{before:?} grew to {after:?}");
    }
    snapshot.execute("ROLLBACK").await.unwrap();
}
