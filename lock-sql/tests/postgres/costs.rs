//! What verbs read, in pages: a busy machine does not change that.

use std::time::{Duration, Instant};

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use crate::postgres_server::{Admin as _, PostgresServer};

/// How many pages this reads.
async fn pages(admin: &mut PgConnection, sql: &str) -> u64 {
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {sql}");
    let rows = admin.fetch_all(AssertSqlSafe(explain)).await.unwrap();
    let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let line = plan.iter().find_map(|line| line.trim().strip_prefix("Buffers: shared ")).unwrap_or_default();
    let counts = line.split(' ').filter_map(|count| count.split_once('=')?.1.parse::<u64>().ok());
    let counts: Vec<_> = line.split(' ').zip(counts).collect();
    // Pages that are dirtied were hit or read before.
    counts
        .iter()
        .filter(|(what, _)| what.starts_with("hit") || what.starts_with("read"))
        .map(|(_, n)| n)
        .sum()
}

fn acquire(name: &str, holder: &str, mode: &str) -> String {
    format!(
        "SELECT * FROM onelock.acquire('{name}', {holder}, '{mode}', 3600000000, 3600000000, 0, true, '', '', 0, false)"
    )
}

fn release(name: &str, holder: &str) -> String {
    format!("SELECT onelock.release('{name}', {holder})")
}

fn renew(name: &str, holder: &str) -> String {
    format!(
        "SELECT * FROM onelock.renew(ARRAY['{name}'], ARRAY[{holder}]::bytea[], ARRAY[3600000000], ARRAY[3600000000], \
         ARRAY[0]::bigint[], '', false)"
    )
}

/// Does this for each number of a range, in transactions of their own.
async fn each(admin: &mut PgConnection, from: u32, to: u32, what: &[String]) {
    let what: String = what.iter().map(|sql| sql.replacen("SELECT * FROM", "PERFORM", 1) + "; ").collect();
    let what = what.replace("SELECT onelock", "PERFORM onelock");
    let sql = format!("DO $$ BEGIN FOR i IN {from}..{to} LOOP {what} COMMIT; END LOOP; END $$");
    admin.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
}

const NUMBERED: &str = "decode(lpad(to_hex(i), 32, '0'), 'hex')";
const ONE: &str = "'\\xffffffffffffffffffffffffffffffff'";

/// A snapshot that stays open keeps every dead row: a busy lock must not walk over them.
#[tokio::test]
async fn an_open_snapshot_does_not_slow_a_busy_lock() {
    let server = PostgresServer::start(&["synchronous_commit=off", "log_statement=none"]).await.unwrap();
    server.migrate("app").await.unwrap();
    let (mut admin, mut open) = (server.admin().await.unwrap(), server.admin().await.unwrap());
    open.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    open.execute("SELECT 1").await.unwrap();
    let cycle = [acquire("n", NUMBERED, "x"), release("n", NUMBERED)];
    // Behind one who holds for long others come, wait, and go.
    admin.execute(AssertSqlSafe(acquire("held", "'\\x01'", "x"))).await.unwrap();
    let gives_up = [acquire("held", NUMBERED, "x"), release("held", NUMBERED)];
    let mut costs = Vec::new();
    for (from, to) in [(1, 300), (301, 4_000)] {
        each(&mut admin, from, to, &cycle).await;
        each(&mut admin, from, to, &gives_up).await;
        let mut cost = 0;
        for sql in
            [acquire("n", ONE, "x"), release("n", ONE), acquire("held", ONE, "x"), release("held", ONE)]
        {
            cost += pages(&mut admin, &sql).await;
        }
        costs.push(cost);
    }
    assert!(costs[0] > 0, "nothing is counted");
    assert!(costs[1] <= costs[0] * 2, "pages after 300 and 4000 cycles: {costs:?}");
}

/// One verb of a long line costs what it costs of a short one.
#[tokio::test]
async fn verbs_of_long_lines_are_cheap() {
    let server = PostgresServer::start(&["synchronous_commit=off", "log_statement=none"]).await.unwrap();
    server.migrate("app").await.unwrap();
    let mut admin = server.admin().await.unwrap();
    for (name, mode, joins) in
        [("s", "s", "s"), ("p", "p90000", "p90000"), ("full", "p10", "p10"), ("x", "x", "x")]
    {
        let mut costs = Vec::new();
        for (from, to) in [(1, 200), (201, 4_000)] {
            each(&mut admin, from, to, &[acquire(name, NUMBERED, mode)]).await;
            let middle = format!("decode(lpad(to_hex({}), 32, '0'), 'hex')", to / 2);
            let mut cost = Vec::new();
            for sql in [acquire(name, ONE, joins), renew(name, &middle), renew(name, ONE), release(name, ONE)]
            {
                cost.push(pages(&mut admin, &sql).await);
            }
            costs.push(cost);
        }
        let totals: Vec<u64> = costs.iter().map(|cost| cost.iter().sum()).collect();
        assert!(totals[0] > 0, "nothing is counted");
        assert!(totals[1] <= totals[0] * 2, "{mode}: pages of lines of 200 and 4000: {costs:?}");
    }
}

/// What is kept of busy names goes when they are idle, as soon as others are asked for.
#[tokio::test]
async fn nothing_is_kept_of_idle_names() {
    let server = PostgresServer::start(&["synchronous_commit=off", "log_statement=none"]).await.unwrap();
    server.migrate("app").await.unwrap();
    let mut admin = server.admin().await.unwrap();
    let idle = "SELECT count(*) FROM onelock.front WHERE name <> 'n'";
    each(&mut admin, 1, 1_000, &[acquire("' || i || '", NUMBERED, "x"), release("' || i || '", NUMBERED)])
        .await;
    let kept = async |admin: &mut PgConnection| admin.fetch_one(idle).await.unwrap().get::<i64, _>(0);
    assert_eq!(kept(&mut admin).await, 0, "of 1000 names that nobody waited for");
    let (first, second) = ("' || i || '", "'\\x01'");
    let waited = [
        acquire(first, NUMBERED, "x"),
        acquire(first, second, "x"),
        release(first, NUMBERED),
        release(first, second),
    ];
    each(&mut admin, 1, 100, &waited).await;
    assert_eq!(kept(&mut admin).await, 100, "of 100 names that somebody waited for");
    let end = Instant::now() + Duration::from_secs(90);
    while kept(&mut admin).await > 0 {
        assert!(Instant::now() < end, "they stay");
        each(&mut admin, 1, 100, &[acquire("n", NUMBERED, "x"), release("n", NUMBERED)]).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
