//! Who has a bell gives its lock to the next in line without locking the name: what others do to the line meanwhile.

use std::sync::Arc;

use lock_core::{Backend as _, Release};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor as _, Row as _};
use tokio::task::JoinHandle;

use crate::bells::{Quick, finish, take, wait_for};
use crate::postgres_server::{Admin as _, PostgresServer};
use crate::sharing::request;

/// A line: `01` holds and has a bell, the others wait. Who joins holds for a minute, and waits for ten seconds.
struct Line {
    server: PostgresServer,
    /// Has the bell.
    holds: PgConnection,
    bell: i64,
    other: PgConnection,
    admin: PgConnection,
}

impl Line {
    async fn start(entries: u8) -> Self {
        let server = PostgresServer::start(&["lock_timeout=60s"]).await.unwrap();
        server.migrate("app").await.unwrap();
        let [mut holds, mut other, admin] =
            [server.admin().await.unwrap(), server.admin().await.unwrap(), server.admin().await.unwrap()];
        let bell = holds.fetch_one(join(1, true)).await.unwrap().get("bell");
        for entry in 2..=entries {
            other.execute(join(entry, false)).await.unwrap();
        }
        Self { server, holds, bell, other, admin }
    }

    /// What another session does, begun and not committed.
    async fn begun(&mut self, sql: AssertSqlSafe<String>) {
        self.other.execute("BEGIN").await.unwrap();
        self.other.execute(sql).await.unwrap();
    }

    fn give(&self, entry: u8) -> AssertSqlSafe<String> {
        let bell = if entry == 1 { self.bell } else { 0 };
        AssertSqlSafe(format!("SELECT onelock.release('n', '\\x{entry:02x}', {bell})"))
    }

    /// What a session asks, once it waits for somebody else.
    async fn blocked(
        &mut self,
        sql: AssertSqlSafe<String>,
    ) -> JoinHandle<Result<sqlx::postgres::PgRow, sqlx::Error>> {
        let mut session = self.server.admin().await.unwrap();
        let asks = tokio::spawn(async move { session.fetch_one(sql).await });
        let waits = "SELECT FROM pg_locks WHERE NOT granted";
        while self.admin.fetch_optional(waits).await.unwrap().is_none() {
            assert!(!asks.is_finished(), "it waits for nobody");
        }
        asks
    }

    async fn commit(&mut self) {
        self.other.execute("COMMIT").await.unwrap();
    }

    /// Who stands in the line, holders in brackets.
    async fn stands(&mut self) -> String {
        let sql = "SELECT string_agg(CASE WHEN held THEN '[' || encode(holder, 'hex') || ']' ELSE encode(holder, 'hex') END, \
                   ' ' ORDER BY token) FROM onelock.line";
        self.admin.fetch_one(sql).await.unwrap().get::<Option<String>, _>(0).unwrap_or_default()
    }

    /// Whether an entry has a holder's lease.
    async fn has_a_holders_lease(&mut self, entry: u8) -> bool {
        let sql = format!(
            "SELECT ends > clock_timestamp() + interval '30 s' FROM onelock.line WHERE holder = '\\x{entry:02x}'"
        );
        self.admin.fetch_one(AssertSqlSafe(sql)).await.unwrap().get(0)
    }
}

fn join(entry: u8, bell: bool) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!(
        "SELECT * FROM onelock.acquire('n', '\\x{entry:02x}', 'x', 60000000, 10000000, 0, true, '', '', {bell}, false)"
    ))
}

fn renew(entry: u8) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!(
        "SELECT tokens, whose FROM onelock.renew(ARRAY['n'], ARRAY['\\x{entry:02x}'::bytea], ARRAY[60000000], \
         ARRAY[10000000], ARRAY[0], '', false)"
    ))
}

#[tokio::test]
async fn nobody_who_joins_is_waited_for() {
    let mut line = Line::start(2).await;
    line.begun(join(3, false)).await;
    let gives = line.give(1);
    line.holds.execute("SET lock_timeout = '10s'").await.unwrap();
    assert!(line.holds.fetch_one(gives).await.unwrap().get::<bool, _>(0));
    assert_eq!(line.stands().await, "[02]");
    line.commit().await;
    assert_eq!(line.stands().await, "[02] 03");
    let gives = line.give(2);
    line.other.execute(gives).await.unwrap();
    assert_eq!(line.stands().await, "[03]");
}

/// A lock of the server's lock table is given in the order in which it was asked for; a row goes to whoever comes just when it is
/// free.
#[tokio::test]
async fn who_joins_with_a_bell_stands_in_line() {
    let mut line = Line::start(1).await;
    line.begun(join(2, true)).await;
    let joins = line.blocked(join(3, true)).await;
    let waits = "SELECT locktype FROM pg_locks WHERE NOT granted";
    assert_eq!(line.admin.fetch_one(waits).await.unwrap().get::<&str, _>(0), "advisory");
    line.commit().await;
    joins.await.unwrap().unwrap();
    assert_eq!(line.stands().await, "[01] 02 03");
}

/// Where nobody stands behind, who joins is to be seen: the name is locked.
#[tokio::test]
async fn the_last_in_line_waits_for_who_joins() {
    let mut line = Line::start(1).await;
    line.begun(join(2, false)).await;
    let gives = line.give(1);
    let given = line.blocked(gives).await;
    line.commit().await;
    assert!(given.await.unwrap().unwrap().get::<bool, _>(0));
    assert_eq!(line.stands().await, "[02]");
}

#[tokio::test]
async fn who_is_next_may_leave_meanwhile() {
    let mut line = Line::start(3).await;
    let leaves = line.give(2);
    line.begun(leaves).await;
    let gives = line.give(1);
    let given = line.blocked(gives).await;
    line.commit().await;
    let refused = given.await.unwrap().unwrap_err();
    let code = refused.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned());
    assert_eq!(code.as_deref(), Some("40001"), "{refused}");
    assert_eq!(line.stands().await, "[01] 03");
    // The client asks again.
    let gives = line.give(1);
    assert!(line.holds.fetch_one(gives).await.unwrap().get::<bool, _>(0));
    assert_eq!(line.stands().await, "[03]");
}

/// The client's own part of that: it asks again on another connection, and its release is one.
#[tokio::test]
async fn a_release_that_was_undone_is_asked_again() {
    let mut quick = Quick::start().await;
    let [holder, next, last] = [request("n"), request("n"), request("n")];
    take(&quick.stores[0], &holder).await;
    quick.stores[1].acquire(&next).await.unwrap();
    let last_stands = quick.stores[2].acquire(&last).await.unwrap();
    wait_for(&mut quick.admin, 2).await;
    let mut leaves = quick.server.admin().await.unwrap();
    leaves.execute("BEGIN").await.unwrap();
    let leave = format!("DELETE FROM onelock.line WHERE holder = '\\x{}'", next.holder.to_hex());
    leaves.execute(AssertSqlSafe(leave)).await.unwrap();
    let store = Arc::clone(&quick.stores[0]);
    let gives = tokio::spawn(async move { store.release(&holder.ticket()).await });
    let waits = "SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted";
    while quick.admin.fetch_optional(waits).await.unwrap().is_none() {
        assert!(!gives.is_finished(), "it waits for nobody");
    }
    leaves.execute("COMMIT").await.unwrap();
    assert_eq!(gives.await.unwrap().unwrap(), Release::Released);
    finish(&quick.stores[2], &last, last_stands).await;
}

#[tokio::test]
async fn a_renewal_of_who_was_next_finds_that_it_holds() {
    for asks in [renew(2), join(2, false)] {
        let mut line = Line::start(2).await;
        let gives = line.give(1);
        line.begun(gives).await;
        let renewed = line.blocked(asks).await;
        line.commit().await;
        let row = renewed.await.unwrap().unwrap();
        let whose = row.try_get::<Vec<Vec<u8>>, _>("whose").unwrap_or_else(|_| vec![row.get("whose")]);
        assert_eq!(whose, [[2]], "it was not told that it holds");
        assert!(line.has_a_holders_lease(2).await, "it believes in a lease that it does not have");
    }
}

#[tokio::test]
async fn a_renewal_of_who_has_just_left_finds_nothing() {
    let mut line = Line::start(2).await;
    let gives = line.give(1);
    line.begun(gives).await;
    let renewed = line.blocked(renew(1)).await;
    line.commit().await;
    let row = renewed.await.unwrap().unwrap();
    assert_eq!(row.get::<Vec<Option<i64>>, _>("tokens"), [None]);
    assert_eq!(row.get::<Vec<Vec<u8>>, _>("whose"), [[0, 1]]);
}

/// One whose lease has ended has nothing to give; it is dropped, and the next one holds.
#[tokio::test]
async fn who_has_expired_gives_nothing() {
    let mut line = Line::start(2).await;
    let ended = "UPDATE onelock.line SET ends = clock_timestamp() - interval '1 ms' WHERE holder = '\\x01'";
    line.admin.execute(ended).await.unwrap();
    let gives = line.give(1);
    assert!(!line.holds.fetch_one(gives).await.unwrap().get::<bool, _>(0));
    assert_eq!(line.stands().await, "[02]");
}

/// One that waits and leaves does not make anybody hold.
#[tokio::test]
async fn who_only_waits_gives_nothing_on() {
    let mut line = Line::start(3).await;
    let leaves = AssertSqlSafe(format!("SELECT onelock.release('n', '\\x02', {})", i64::MAX));
    assert!(line.other.fetch_one(leaves).await.unwrap().get::<bool, _>(0));
    assert_eq!(line.stands().await, "[01] 03");
}
