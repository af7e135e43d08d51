//! Bells: who gives an entry back tells who is right behind it, in another client; and what happens when nobody does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onelock_conformance::servers::mariadb::mysqld;
use onelock_core::{Backend as _, FencingToken, Mode, Release, Result, Ticket, Wake};
use onelock_sql::MySqlBackend;
use sqlx::Executor as _;
use tokio::task::JoinHandle;

use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::{LONG, connect, held, request, ticket, waiting};

/// How long a look waits for a bell: the longest pause.
const LIMIT: Duration = Duration::from_secs(1);
const LISTENS: &str = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'";

struct Room {
    server: MariaDb,
    options: &'static str,
}

impl Room {
    /// `None` on MySQL, which waits for a user lock for whole seconds only.
    async fn open() -> Option<Self> {
        if mysqld().is_some() {
            println!("left out: MySQL has no bells");
            return None;
        }
        Some(Self { server: MariaDb::start(&[]).await.unwrap(), options: "" })
    }

    /// Where commits do not wait for the disk.
    async fn relaxed() -> Option<Self> {
        let mut room = Self::open().await?;
        room.server.run("SET GLOBAL innodb_flush_log_at_trx_commit = 2").await.unwrap();
        room.options = "&durability=relaxed";
        Some(room)
    }

    /// A client to which these names are known.
    async fn client(&self, names: &[&str]) -> Arc<MySqlBackend> {
        let client = connect(&format!("{}?poll=1s{}", self.server.url(), self.options)).await;
        for name in names {
            let known = request(name, Mode::Exclusive);
            let token = held(&client, &known).await.token;
            client.release(&ticket(&known, token)).await.unwrap();
        }
        Arc::new(client)
    }

    /// Three clients to which this name is known.
    async fn clients(&self, name: &str) -> [Arc<MySqlBackend>; 3] {
        [self.client(&[name]).await, self.client(&[name]).await, self.client(&[name]).await]
    }

    async fn status(&self, name: &str) -> u64 {
        let query = format!(
            "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = '{name}'"
        );
        self.server.count(&query).await.unwrap()
    }

    /// That this stays true while six looks are begun.
    async fn while_looked(&self, holds: impl Fn()) {
        let (before, end) = (self.status("Com_compound_sql").await, Instant::now() + LONG);
        while self.status("Com_compound_sql").await < before + 6 {
            holds();
            assert!(Instant::now() < end, "nobody looks any more");
        }
        holds();
    }

    /// Until so many looks wait for a bell.
    async fn until_listening(&self, count: u64) {
        let end = Instant::now() + LONG;
        while self.server.count(LISTENS).await.unwrap() != count {
            assert!(Instant::now() < end, "not {count} listen");
        }
    }
}

/// An entry that waits.
struct Waiter {
    ticket: Ticket,
    token: FencingToken,
    told: JoinHandle<Result<Wake>>,
}

async fn waiter(client: &Arc<MySqlBackend>, on: &str) -> Waiter {
    let entry = request(on, Mode::Exclusive);
    let token = waiting(&**client, &entry).await.token;
    let ticket = ticket(&entry, token);
    let told = tokio::spawn({
        let (client, ticket) = (Arc::clone(client), ticket.clone());
        async move { client.wait(&ticket).await }
    });
    Waiter { ticket, token, told }
}

/// The second takes over from the first: it has waited, so it has a bell.
async fn has_waited(first: &MySqlBackend, second: &Arc<MySqlBackend>, on: &str) -> Ticket {
    let entry = request(on, Mode::Exclusive);
    let token = held(first, &entry).await.token;
    let next = waiter(second, on).await;
    first.release(&ticket(&entry, token)).await.unwrap();
    next.holds().await
}

impl Waiter {
    async fn holds(self) -> Ticket {
        let told = tokio::time::timeout(LONG, self.told).await.unwrap().unwrap().unwrap();
        assert_eq!(told, Wake::Held(self.token));
        self.ticket
    }
}

/// It is told before the look that was under way could have ended by itself. A slow machine may be late once; not for ever.
async fn a_release_tells(room: Room) {
    let [a, b, c] = room.clients("told").await;
    let end = Instant::now() + LONG;
    loop {
        let second = has_waited(&a, &b, "told").await;
        let began = Instant::now();
        let third = waiter(&c, "told").await;
        room.until_listening(1).await;
        b.release(&second).await.unwrap();
        let third = third.holds().await;
        let took = began.elapsed();
        c.release(&third).await.unwrap();
        if took < LIMIT {
            return;
        }
        assert!(Instant::now() < end, "told after {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_tells_who_is_right_behind() {
    if let Some(room) = Room::open().await {
        a_release_tells(room).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_does_not_wait_for_the_disk_tells_who_is_right_behind() {
    if let Some(room) = Room::relaxed().await {
        a_release_tells(room).await;
    }
}

/// Who joins a name that its client does not know is told who is right ahead, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_joins_in_full_listens() {
    let Some(room) = Room::open().await else { return };
    let [a, b, c] =
        [room.client(&["full"]).await, room.client(&["full"]).await, room.client(&["another"]).await];
    let second = has_waited(&a, &b, "full").await;
    let third = waiter(&c, "full").await;
    room.until_listening(1).await;
    b.release(&second).await.unwrap();
    third.holds().await;
}

/// A client that ends leaves its entry in the line and takes its bell with it: who hears that does not hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bell_of_a_client_that_ends_gives_nothing() {
    let Some(room) = Room::open().await else { return };
    let [a, b, c] = room.clients("ends").await;
    let second = has_waited(&a, &b, "ends").await;
    let third = waiter(&c, "ends").await;
    room.until_listening(1).await;
    b.close().await.unwrap();
    // It has heard that, and looks in pauses now: what it looks at is the line.
    room.until_listening(0).await;
    room.while_looked(|| assert!(!third.told.is_finished())).await;
    a.release(&second).await.unwrap();
    third.holds().await;
}

/// Who rings has not committed yet, and who hears it waits for that: one look finds the entry gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_hears_a_bell_waits_for_the_commit() {
    let Some(room) = Room::open().await else { return };
    let [a, b, c] = room.clients("early").await;
    let second = has_waited(&a, &b, "early").await;
    let third = waiter(&c, "early").await;
    room.until_listening(1).await;
    let looks = room.status("Com_compound_sql").await;
    // The entry goes in a transaction that is not over when the bell is heard.
    let mut leaving = room.server.admin().await.unwrap();
    let number = second.token.unwrap();
    for sql in ["START TRANSACTION", &format!("DELETE FROM locks.onelock_line WHERE number = {number}")] {
        leaving.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()))).await.unwrap();
    }
    b.close().await.unwrap();
    let end = Instant::now() + LONG;
    while room.status("Innodb_row_lock_current_waits").await == 0 {
        assert!(Instant::now() < end, "nobody waits for the commit");
    }
    assert!(!third.told.is_finished());
    leaving.execute("COMMIT").await.unwrap();
    third.holds().await;
    assert_eq!(room.status("Com_compound_sql").await, looks, "more than one look");
}

/// Whoever finds its entry gone rings nevertheless: a bell of an entry that is not in the line is nobody's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_comes_too_late_rings() {
    let Some(room) = Room::open().await else { return };
    let [a, b, c] = room.clients("late").await;
    let end = Instant::now() + LONG;
    loop {
        let second = has_waited(&a, &b, "late").await;
        let began = Instant::now();
        let third = waiter(&c, "late").await;
        room.until_listening(1).await;
        let number = second.token.unwrap();
        room.server.run(&format!("DELETE FROM locks.onelock_line WHERE number = {number}")).await.unwrap();
        assert_eq!(b.release(&second).await.unwrap(), Release::NotHeld);
        let third = third.holds().await;
        let took = began.elapsed();
        c.release(&third).await.unwrap();
        if took < LIMIT {
            return;
        }
        assert!(Instant::now() < end, "told after {took:?}");
    }
}

/// Two clients that wait for each other wait for each other's bells, too: the server refuses one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_each_other_goes_on_looking() {
    let Some(room) = Room::open().await else { return };
    let names = ["one", "two"];
    let [a, b, c] = [room.client(&names).await, room.client(&names).await, room.client(&names).await];
    // Both hold with a bell.
    let mut tickets = Vec::new();
    for (client, name) in [(&b, "one"), (&c, "two")] {
        let first = request(name, Mode::Exclusive);
        let token = held(&*a, &first).await.token;
        let next = waiter(client, name).await;
        a.release(&ticket(&first, token)).await.unwrap();
        tickets.push(next.holds().await);
    }
    let refused = room.status("Com_rollback").await;
    let (of_b, of_c) = (waiter(&b, "two").await, waiter(&c, "one").await);
    room.while_looked(|| assert!(!of_b.told.is_finished() && !of_c.told.is_finished())).await;
    assert_eq!(room.status("Com_rollback").await, refused, "a look has failed");
    b.release(&tickets[0]).await.unwrap();
    c.release(&of_c.holds().await).await.unwrap();
    c.release(&tickets[1]).await.unwrap();
    of_b.holds().await;
}

/// A server that keeps no more prepared statements, or none at all, is told everything anew each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_prepares_nothing_is_told_each_time() {
    let Some(room) = Room::open().await else { return };
    room.server.run("SET GLOBAL max_prepared_stmt_count = 0").await.unwrap();
    a_release_tells(room).await;
}
