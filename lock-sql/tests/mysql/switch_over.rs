//! A planned switch-over: the primary is made read-only, a replica that has everything takes writes. Connections to the old
//! primary stay open, and its rows stand still.

use std::time::Duration;

use onelock_core::{Backend, ErrorKind, Mode, Renewal, Renewed, Ticket, Wake};

use crate::mysql_server::{Admin as _, MariaDb};
use crate::support::{LONG, connect, held, request, ticket, waiting};

/// Two servers with the tables, of which the first takes writes.
async fn pair() -> (MariaDb, MariaDb) {
    let [old, new] =
        [0, 1].map(|_| async { MariaDb::start(&[]).await.unwrap().with_locker().await.unwrap() });
    let (old, new) = (old.await, new.await);
    new.run("SET GLOBAL read_only = ON").await.unwrap();
    (old, new)
}

fn url(user: &str, old: &MariaDb, new: &MariaDb, options: &str) -> String {
    format!("mysql://{user}@127.0.0.1:{},127.0.0.1:{}/locks{options}", old.port(), new.port())
}

/// Gives the second what the first has, and lets it take the writes.
async fn switch(old: &MariaDb, new: &MariaDb) {
    old.run("SET GLOBAL read_only = ON").await.unwrap();
    let text = |column: &str| format!("CONCAT('x''', HEX({column}), '''')");
    let columns = ["name", "slot", "number", "holder", "mode", "room", "weight", "ends", "joined", "note"];
    let values = columns.map(|column| match column {
        "name" | "holder" | "mode" | "note" => text(column),
        number => number.to_owned(),
    });
    let rows = format!("SELECT CONCAT_WS(',', {}) FROM locks.onelock_line", values.join(", "));
    for row in old.texts(&rows).await.unwrap() {
        let insert = format!("INSERT INTO locks.onelock_line ({}) VALUES ({row})", columns.join(", "));
        new.run(&insert).await.unwrap();
    }
    let counters = "SELECT CONCAT('number = ', number, ' WHERE bucket = ', bucket) FROM locks.onelock_counter WHERE number > 0";
    for set in old.texts(counters).await.unwrap() {
        new.run(&format!("UPDATE locks.onelock_counter SET {set}")).await.unwrap();
    }
    new.run("SET GLOBAL read_only = OFF").await.unwrap();
}

/// Whether a wait has ended without a grant: where a connection was lost it says that first.
fn is_to_ask(wake: &onelock_core::Result<Wake>) -> bool {
    wake.as_ref().map_or_else(|error| error.kind() == ErrorKind::Unavailable, |wake| *wake == Wake::Ask)
}

/// Waits until it holds.
async fn holds(store: &dyn Backend, ticket: &Ticket) {
    let wake = async {
        loop {
            let wake = store.wait(ticket).await;
            if !is_to_ask(&wake) {
                break wake.unwrap();
            }
        }
    };
    assert_eq!(tokio::time::timeout(LONG, wake).await.expect("it holds"), Wake::Held(ticket.token.unwrap()));
}

/// The holder renews on the new primary, while on the old one its lease ends: that makes no grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demoted_primary_gives_no_lock() {
    for options in ["", "?blocks=false"] {
        let (old, new) = pair().await;
        let url = url("locker", &old, &new, options);
        let (holder, waiter) = (connect(&url).await, connect(&url).await);
        let mut first = request("job", Mode::Exclusive);
        first.lease = Duration::from_secs(3);
        held(&holder, &first).await;
        let second = request("job", Mode::Exclusive);
        let token = waiting(&waiter, &second).await.token.unwrap();
        let second = ticket(&second, token);
        // It polls the old primary.
        let early = tokio::time::timeout(Duration::from_millis(300), waiter.wait(&second)).await;
        assert!(early.is_err(), "{early:?}");
        switch(&old, &new).await;
        let renewed = holder.renew(&[Renewal::new(first.ticket(), LONG, LONG)]).await;
        assert!(matches!(renewed[..], [Ok(Renewed::Held(_))]), "{renewed:?}");
        let until = tokio::time::Instant::now() + Duration::from_secs(5);
        while let Ok(wake) = tokio::time::timeout_at(until, waiter.wait(&second)).await {
            assert!(is_to_ask(&wake), "the first holds, on the new primary: {wake:?}");
        }
        holder.release(&first.ticket()).await.unwrap();
        holds(&waiter, &second).await;
    }
}

/// The old primary has no row of who joins on the new one: that it finds nothing there is no reason to ask again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_joins_after_it_is_not_looked_for_on_the_old_primary() {
    for options in ["", "?blocks=false"] {
        let (old, new) = pair().await;
        let url = url("locker", &old, &new, options);
        let (holder, waiter) = (connect(&url).await, connect(&url).await);
        for on in ["before", "after"] {
            let (first, second) = (request(on, Mode::Exclusive), request(on, Mode::Exclusive));
            held(&holder, &first).await;
            let token = waiting(&waiter, &second).await.token.unwrap();
            let (second, mut asks) = (ticket(&second, token), 0);
            // It polls, on a connection that stays.
            while let Ok(wake) = tokio::time::timeout(Duration::from_millis(300), waiter.wait(&second)).await
            {
                assert!(is_to_ask(&wake), "the first holds: {wake:?}");
                asks += 1;
                assert!(asks < 20, "{on} the switch-over it is told to ask, again and again");
            }
            holder.release(&first.ticket()).await.unwrap();
            holds(&waiter, &second).await;
            waiter.release(&second).await.unwrap();
            if on == "before" {
                switch(&old, &new).await;
            }
        }
    }
}

/// A user whom `read_only` does not stop could write on the old primary for as long as its connections live.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_write_on_a_demoted_primary_does_not() {
    for options in ["", "?blocks=false"] {
        let (old, new) = pair().await;
        let store = connect(&url("root", &old, &new, options)).await;
        let (first, other) = (request("job", Mode::Exclusive), request("left", Mode::Exclusive));
        held(&store, &first).await;
        held(&store, &other).await;
        switch(&old, &new).await;
        let rows = "SELECT COALESCE(GROUP_CONCAT(name, ' ', number, ' ', ends ORDER BY name), '') FROM locks.onelock_line";
        let (left, had) = (old.texts(rows).await.unwrap(), new.texts(rows).await.unwrap());
        assert_eq!(left, had);
        let renewed = store.renew(&[Renewal::new(first.ticket(), 2 * LONG, LONG)]).await;
        assert!(matches!(renewed[..], [Ok(Renewed::Held(_))]), "{renewed:?}");
        held(&store, &request("new", Mode::Exclusive)).await;
        // The connection broke, or not: the entry has gone from the new primary.
        let _ = store.release(&other.ticket()).await;
        assert_eq!(old.texts(rows).await.unwrap(), left, "nothing is written on the old primary {options}");
        let names = new.texts("SELECT name FROM locks.onelock_line ORDER BY name").await.unwrap();
        assert_eq!(names, ["job", "new"]);
        assert_ne!(new.texts(rows).await.unwrap(), had);
    }
}

/// The values that `read_only` has on MariaDB 12, where only one of them lets everybody write.
#[tokio::test]
async fn only_off_is_writable() {
    let server = MariaDb::start(&[]).await.unwrap();
    let text = include_str!("../../src/mysql/sql/primary.sql").split_once("SET ").unwrap().1;
    for (value, writable) in [
        ("'OFF'", true),
        ("0", true),
        ("'ON'", false),
        ("'NO_LOCK'", false),
        ("'NO_LOCK_NO_ADMIN'", false),
        ("1", false),
    ] {
        let answer = server.run(&format!("SET {}", text.replace("@@GLOBAL.read_only", value))).await;
        assert_eq!(answer.is_ok(), writable, "{value}: {answer:?}");
    }
}
