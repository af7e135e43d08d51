//! Where a lock changes hands quickly the one right behind is told by a bell. It is a hint: only the table says who holds.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Backend, FencingToken, Mode, Release, Renewal, Request, Standing, Wake};
use lock_sql::postgres::PostgresBackend;
use sqlx::postgres::{PgConnection, PgListener, PgPoolOptions};
use sqlx::{Executor as _, Row as _};
use tokio::task::JoinHandle;

use crate::postgres_server::{Admin as _, PostgresServer};
use crate::server::open;
use crate::sharing::request;

/// A server and three clients that have seen `n` change hands quickly.
pub(crate) struct Quick {
    pub(crate) server: PostgresServer,
    pub(crate) admin: PgConnection,
    pub(crate) stores: [Arc<PostgresBackend>; 3],
}

impl Quick {
    pub(crate) async fn start() -> Self {
        let server = PostgresServer::start(&["synchronous_commit=off"]).await.unwrap();
        let admin = server.admin().await.unwrap();
        let url = server.url();
        let stores = [open(&url).await, open(&url).await, open(&url).await].map(Arc::new);
        let mut this = Self { server, admin, stores };
        // A machine that stands still for a moment makes a turn slow.
        for _ in 0..100 {
            if this.has_bells().await {
                return this;
            }
        }
        panic!("a hundred turns, and none of them was quick");
    }

    /// Each client waits for another once; whether a new entry of any of them has a bell then.
    async fn has_bells(&mut self) -> bool {
        for turn in 0..3 {
            let (first, second) = (&self.stores[turn], &self.stores[(turn + 1) % 3]);
            let (holder, waiter) = (request("n"), request("n"));
            take(first, &holder).await;
            let (standing, ()) = tokio::join!(second.acquire(&waiter), async {
                wait_for(&mut self.admin, 1).await;
                first.release(&holder.ticket()).await.unwrap();
            });
            let standing = standing.unwrap();
            finish(second, &waiter, standing).await;
            second.release(&waiter.ticket()).await.unwrap();
        }
        let mut bells = true;
        for turn in 0..3 {
            let one = request("n");
            take(&self.stores[turn], &one).await;
            bells &= self.bells().await == 1;
            self.stores[turn].release(&one.ticket()).await.unwrap();
        }
        bells
    }

    /// How many bells there are at the server.
    async fn bells(&mut self) -> i64 {
        let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock'";
        self.admin.fetch_one(sql).await.unwrap().get(0)
    }

    /// A join of the third client, as a task.
    fn joins(&self, request: &Request) -> JoinHandle<lock_core::Result<Standing>> {
        let (store, request) = (Arc::clone(&self.stores[2]), request.clone());
        tokio::spawn(async move { store.acquire(&request).await })
    }

    async fn has_no_bells(&mut self) {
        for _ in 0..3_000 {
            if self.bells().await == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("a bell was left");
    }
}

/// Until so many wait.
pub(crate) async fn wait_for(admin: &mut PgConnection, waiters: i64) {
    for _ in 0..30_000 {
        let row = admin.fetch_one("SELECT count(*) FROM onelock.line WHERE NOT held").await.unwrap();
        if row.get::<i64, _>(0) == waiters {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{waiters} did not come to wait");
}

/// Until somebody waits for a bell, or what `listens` does has ended.
async fn until_listening<T>(admin: &mut PgConnection, listens: &JoinHandle<T>) -> bool {
    let waits = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    while admin.fetch_optional(waits).await.unwrap().is_none() {
        if listens.is_finished() {
            return false;
        }
    }
    true
}

/// Takes the lock, in its turn.
pub(crate) async fn take(store: &PostgresBackend, request: &Request) -> FencingToken {
    let standing = store.acquire(request).await.unwrap();
    finish(store, request, standing).await
}

/// Waits, if it has to, until it holds.
pub(crate) async fn finish(store: &PostgresBackend, request: &Request, standing: Standing) -> FencingToken {
    match standing {
        Standing::Held(grant) => grant.token,
        Standing::Waiting(place) => {
            let told =
                async { while store.wait(&request.ticket()).await.unwrap() != Wake::Held(place.token) {} };
            tokio::time::timeout(Duration::from_secs(60), told).await.unwrap();
            place.token
        }
        Standing::Busy(_) => panic!("not let into the line"),
    }
}

/// Six clients take turns: most of them are told by a bell, without a notification.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quick_turns_are_told_by_bells() {
    const TURNS: usize = 60;
    let quick = Quick::start().await;
    let mut stores = Vec::from(quick.stores);
    for _ in 0..3 {
        stores.push(Arc::new(open(&quick.server.url()).await));
    }
    // Where each client is told.
    let mut admin = quick.server.admin().await.unwrap();
    let pool = PgPoolOptions::new().max_connections(1).connect(&quick.server.url()).await.unwrap();
    let mut listener = PgListener::connect_with(&pool).await.unwrap();
    for store in &stores {
        let one = request("elsewhere");
        take(store, &one).await;
        let row = admin.fetch_one("SELECT inbox FROM onelock.line WHERE name = 'elsewhere'").await.unwrap();
        listener.listen(row.get(0)).await.unwrap();
        store.release(&one.ticket()).await.unwrap();
    }
    listener.listen("the_end").await.unwrap();
    let clients = stores.into_iter().map(|store| {
        tokio::spawn(async move {
            let mut last = None;
            for _ in 0..TURNS {
                let one = request("n");
                let token = take(&store, &one).await;
                assert!(last < Some(token), "tokens went back");
                last = Some(token);
                assert_eq!(store.release(&one.ticket()).await.unwrap(), Release::Released);
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    admin.execute("NOTIFY the_end").await.unwrap();
    let mut notified = 0;
    while listener.recv().await.unwrap().channel() != "the_end" {
        notified += 1;
    }
    assert!(notified < 3 * TURNS, "{notified} of {} turns were told by a notification", 6 * TURNS);
}

/// A bell that ends with its connection, and not with its entry, gives nobody the lock.
#[tokio::test]
async fn a_bell_that_goes_says_nothing() {
    let mut quick = Quick::start().await;
    let [holder, next, last] = [request("n"), request("n"), request("n")];
    take(&quick.stores[0], &holder).await;
    let next_stands = quick.stores[1].acquire(&next).await.unwrap();
    let joins = quick.joins(&last);
    wait_for(&mut quick.admin, 2).await;
    // Where the machine stood still for so long the bell is not waited for any more, and goes unheard.
    until_listening(&mut quick.admin, &joins).await;
    // All but the one of who listens.
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted \
                AND pid NOT IN (SELECT pid FROM pg_locks WHERE NOT granted)";
    quick.admin.execute(kill).await.unwrap();
    let last_stands = joins.await.unwrap().unwrap();
    assert!(matches!(last_stands, Standing::Waiting(_)), "{last_stands:?}");
    let ticket = last.ticket();
    let store = Arc::clone(&quick.stores[2]);
    let mut wait = std::pin::pin!(store.wait(&ticket));
    assert!(futures_util::poll!(&mut wait).is_pending(), "told while somebody else holds it");
    // The connection of the release is gone; another try has another one.
    while quick.stores[0].release(&holder.ticket()).await.is_err() {}
    finish(&quick.stores[1], &next, next_stands).await;
    assert!(futures_util::poll!(&mut wait).is_pending(), "told while the one ahead holds it");
    while quick.stores[1].release(&next.ticket()).await.is_err() {}
    finish(&quick.stores[2], &last, last_stands).await;
}

/// Who holds and does nothing: the one who listened waits for a notification after a while, and has no bell any more.
#[tokio::test]
async fn a_bell_that_is_not_rung_is_not_waited_for() {
    let mut quick = Quick::start().await;
    let [holder, next, last] = [request("n"), request("n"), request("n")];
    take(&quick.stores[0], &holder).await;
    let next_stands = quick.stores[1].acquire(&next).await.unwrap();
    let last_stands = quick.stores[2].acquire(&last).await.unwrap();
    assert!(matches!(last_stands, Standing::Waiting(_)), "{last_stands:?}");
    assert_eq!(quick.bells().await, 2, "of the holder and of who is next");
    let deaf = "SELECT FROM onelock.line WHERE inbox = ''";
    assert!(quick.admin.fetch_optional(deaf).await.unwrap().is_none(), "somebody is told nowhere");
    quick.stores[0].release(&holder.ticket()).await.unwrap();
    finish(&quick.stores[1], &next, next_stands).await;
    quick.stores[1].release(&next.ticket()).await.unwrap();
    finish(&quick.stores[2], &last, last_stands).await;
    quick.has_no_bells().await;
}

/// A waiter that was given up half way leaves nothing once it is given back.
#[tokio::test]
async fn a_waiter_that_is_given_up_leaves_no_bell() {
    let mut quick = Quick::start().await;
    let [holder, next, last] = [request("n"), request("n"), request("n")];
    take(&quick.stores[0], &holder).await;
    let next_stands = quick.stores[1].acquire(&next).await.unwrap();
    // Until it is in the line; then it is dropped.
    tokio::select! {
        biased;
        standing = quick.stores[2].acquire(&last) => assert!(matches!(standing.unwrap(), Standing::Waiting(_))),
        () = wait_for(&mut quick.admin, 2) => {}
    }
    assert_eq!(quick.stores[2].release(&last.ticket()).await.unwrap(), Release::Released);
    assert_eq!(quick.stores[0].release(&holder.ticket()).await.unwrap(), Release::Released);
    finish(&quick.stores[1], &next, next_stands).await;
    assert_eq!(quick.stores[1].release(&next.ticket()).await.unwrap(), Release::Released);
    quick.has_no_bells().await;
    take(&quick.stores[2], &request("n")).await;
}

/// Who still holds when its lease is renewed has no need of a connection for that.
#[tokio::test]
async fn who_holds_for_long_keeps_no_connection() {
    let mut quick = Quick::start().await;
    let one = request("n");
    take(&quick.stores[0], &one).await;
    assert_eq!(quick.bells().await, 1);
    let renewal = Renewal { ticket: one.ticket(), lease: one.lease, waiter_lease: one.waiter_lease };
    quick.stores[0].renew(&[renewal]).await.pop().unwrap().unwrap();
    quick.has_no_bells().await;
    assert_eq!(quick.stores[0].release(&one.ticket()).await.unwrap(), Release::Released);
}

/// Readers hold together: who is right behind one has no turn to be told of.
#[tokio::test]
async fn readers_have_no_bells() {
    let mut quick = Quick::start().await;
    let reader = Request { mode: Mode::Shared, ..request("n") };
    take(&quick.stores[0], &reader).await;
    assert_eq!(quick.bells().await, 0);
    quick.stores[0].release(&reader.ticket()).await.unwrap();
}

/// With two connections one is not enough for everything else.
#[tokio::test]
async fn who_has_few_connections_keeps_none() {
    let mut quick = Quick::start().await;
    let few = format!("{}&connections=2", quick.server.url());
    let few = if quick.server.url().contains('?') { few } else { few.replacen('&', "?", 1) };
    quick.stores[0] = Arc::new(open(&few).await);
    let [few, other, _] = &quick.stores;
    for _ in 0..10 {
        let (holder, waiter) = (request("m"), request("m"));
        take(other, &holder).await;
        let (standing, ()) = tokio::join!(few.acquire(&waiter), async {
            wait_for(&mut quick.admin, 1).await;
            other.release(&holder.ticket()).await.unwrap();
        });
        let standing = standing.unwrap();
        finish(few, &waiter, standing).await;
        few.release(&waiter.ticket()).await.unwrap();
    }
    let one = request("m");
    take(few, &one).await;
    assert_eq!(quick.bells().await, 0);
}

/// The three sessions of a line, by hand: what a release does and what tells of it are seen together.
#[tokio::test]
async fn a_bell_rings_with_the_commit() {
    let server = PostgresServer::start(&[]).await.unwrap();
    server.migrate("app").await.unwrap();
    let mut sessions = Vec::new();
    for holder in ["\\x01", "\\x02"] {
        let mut session = server.admin().await.unwrap();
        let sql = "SELECT bell FROM onelock.acquire('n', $1::bytea, 'x', 60000000, 60000000, 0, true, '', '', true, false)";
        let row =
            session.fetch_one(sqlx::AssertSqlSafe(sql.replace("$1", &format!("'{holder}'")))).await.unwrap();
        sessions.push((session, row.get::<i64, _>(0)));
    }
    let mut last = server.admin().await.unwrap();
    let joins = "CALL onelock.acquire_and_listen('n', '\\x03', 'x', 60000000, 60000000, 0, '', '', false, 60000, \
                 NULL, NULL, NULL, NULL)";
    let listens = tokio::spawn(async move { last.fetch_one(joins).await.unwrap().get::<String, _>("told") });
    let mut admin = server.admin().await.unwrap();
    assert!(until_listening(&mut admin, &listens).await, "it does not listen");
    for (holder, (session, bell)) in ["\\x01", "\\x02"].iter().zip(&mut sessions) {
        let release = format!("SELECT onelock.release('n', '{holder}', {bell})");
        session.execute("BEGIN").await.unwrap();
        session.execute(sqlx::AssertSqlSafe(release)).await.unwrap();
        let waits = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        assert!(admin.fetch_optional(waits).await.unwrap().is_some(), "it was told before the commit");
        session.execute("COMMIT").await.unwrap();
    }
    assert!(listens.await.unwrap().starts_with(&format!("h{}", "03")), "it was not told that it holds");
}

/// Where the server ends a request before a bell can be waited for, waiters go back to notifications.
#[tokio::test]
async fn a_server_that_allows_no_waiting_is_asked_without() {
    let mut quick = Quick::start().await;
    let [holder, next, last] = [request("n"), request("n"), request("n")];
    take(&quick.stores[0], &holder).await;
    let next_stands = quick.stores[1].acquire(&next).await.unwrap();
    // As a `statement_timeout` would. Where the machine stands still for so long nobody waits any more.
    let joins = quick.joins(&last);
    wait_for(&mut quick.admin, 2).await;
    if until_listening(&mut quick.admin, &joins).await {
        let end = "SELECT pg_cancel_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        quick.admin.execute(end).await.unwrap();
    }
    let failed = joins.await.unwrap();
    assert!(!matches!(failed, Ok(Standing::Held(_))), "{failed:?}");
    assert_eq!(quick.stores[2].release(&last.ticket()).await.unwrap(), Release::Released);
    let again = request("n");
    let again_stands = quick.stores[2].acquire(&again).await.unwrap();
    assert_eq!(quick.bells().await, 2, "of the holder and of who is next");
    quick.stores[0].release(&holder.ticket()).await.unwrap();
    finish(&quick.stores[1], &next, next_stands).await;
    quick.stores[1].release(&next.ticket()).await.unwrap();
    finish(&quick.stores[2], &again, again_stands).await;
}
