//! A payments service over PostgreSQL: the same database has the accounts and the locks. `README.md` says which lines serve what.
//!
//! `payments postgres://user:password@host/database [host:port]`

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use onelock::{Config, Event, FencingToken, Guard, LockName, Locks, Observer, Settings, Term, fence};
use sqlx::postgres::PgConnectOptions;
use sqlx::{PgConnection, PgPool, query, query_scalar};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

type Done<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone)]
struct App {
    locks: Locks,
    accounts: PgPool,
    seen: Arc<Seen>,
}

/// What `/metrics` tells, and the log. The features `metrics` and `tracing` tell more, to recorders of your choice.
#[derive(Default)]
struct Seen(AtomicU64);

impl Observer for Seen {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Held { .. } => _ = self.0.fetch_add(1, Ordering::Relaxed),
            Event::Ended { of, reason, .. } if reason.is_loss() => eprintln!("{} lost: {reason:?}", of.name),
            _ => {}
        }
    }
}

#[tokio::main]
async fn main() -> Done {
    let mut words = std::env::args().skip(1);
    let url = words.next().ok_or("usage: payments postgres://… [host:port]")?;
    // A process that stalls in its transaction would keep the row of the fence, and the next holder waiting.
    let patience = [("idle_in_transaction_session_timeout", "30s"), ("lock_timeout", "10s")];
    let accounts = PgPool::connect_with(url.parse::<PgConnectOptions>()?.options(patience)).await?;
    query(fence::postgres::SCHEMA).execute(&accounts).await?;
    query("CREATE TABLE IF NOT EXISTS accounts (id bigint PRIMARY KEY, cents bigint NOT NULL)")
        .execute(&accounts)
        .await?;

    let (mut config, seen) = (Config::new(&url), Arc::new(Seen::default()));
    config.settings = Settings::default().observer(seen.clone());
    let app = App { locks: onelock::connect_with(&config).await?, accounts, seen };

    let settling = tokio::spawn(settle(app.clone()));
    let export = std::thread::spawn(move || export(&url));
    let listener = TcpListener::bind(words.next().as_deref().unwrap_or("127.0.0.1:0")).await?;
    println!("{}", listener.local_addr()?);
    let (mut term, locks) = (signal(SignalKind::terminate())?, app.locks.clone());
    let stop = async move { _ = term.recv().await };
    axum::serve(listener, routes(app)).with_graceful_shutdown(stop).await?;
    settling.abort();
    locks.drain(SECOND * 30).await?;
    println!("exported: {}", export.join().map_err(|_| "the export panicked")??);
    Ok(())
}

fn routes(app: App) -> Router {
    Router::new()
        .route("/deposit/{account}/{cents}", post(deposit))
        .route("/transfer/{from}/{to}/{cents}", post(transfer))
        .route("/balance/{account}", get(balance))
        .route("/score/{card}", get(score))
        .route("/leader", get(leader))
        .route("/metrics", get(metrics))
        .with_state(app)
}

/// One account: one lock.
async fn deposit(State(app): State<App>, Path((account, cents)): Path<(i64, i64)>) -> Answer {
    let lock = app.locks.mutex(format!("account/{account}"))?;
    let guard = lock.acquire_timeout(SECOND * 30).await?.ok_or(Failed::Busy)?;
    guard.run(book(&app, &guard, account, cents)).await??;
    drop(guard); // released in the background: what is committed counts, whatever that says
    Ok("done".into())
}

/// The row is written only by the newest holder: a writer that stalled for longer than its lease is refused.
async fn book(app: &App, guard: &Guard, account: i64, cents: i64) -> Result<(), Failed> {
    let mut transaction = app.accounts.begin().await?;
    fence::postgres::check(&mut transaction, guard).await?;
    add(&mut transaction, account, cents).await?;
    Ok(transaction.commit().await?)
}

/// An account that is not there begins with nothing.
async fn add(accounts: &mut PgConnection, account: i64, cents: i64) -> Result<(), sqlx::Error> {
    query("INSERT INTO accounts VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET cents = accounts.cents + $2")
        .bind(account)
        .bind(cents)
        .execute(accounts)
        .await?;
    Ok(())
}

/// Two accounts: two locks at once, in whatever order others ask for them.
async fn transfer(State(app): State<App>, Path((from, to, cents)): Path<(i64, i64, i64)>) -> Answer {
    let both = app.locks.all([from, to].map(|account| format!("account/{account}")))?;
    let both = both.acquire_timeout(SECOND * 30).await?.ok_or(Failed::Busy)?;
    both.run(move_money(&app, both.guards(), from, to, cents)).await??;
    drop(both);
    Ok("done".into())
}

async fn move_money(app: &App, guards: &[Guard], from: i64, to: i64, cents: i64) -> Result<(), Failed> {
    let mut transaction = app.accounts.begin().await?;
    for guard in guards {
        fence::postgres::check(&mut transaction, guard).await?;
    }
    add(&mut transaction, from, -cents).await?;
    add(&mut transaction, to, cents).await?;
    Ok(transaction.commit().await?)
}

/// Readers share; who books waits for them, and they for it.
async fn balance(State(app): State<App>, Path(account): Path<i64>) -> Answer {
    let lock = app.locks.rwlock(format!("account/{account}"))?.read();
    let _guard = lock.acquire_timeout(SECOND * 30).await?.ok_or(Failed::Busy)?;
    let cents: i64 = query_scalar("SELECT COALESCE(SUM(cents), 0)::bigint FROM accounts WHERE id = $1")
        .bind(account)
        .fetch_one(&app.accounts)
        .await?;
    Ok(cents.to_string())
}

/// The whole fleet asks the scoring service at most three times at once.
async fn score(State(app): State<App>, Path(card): Path<String>) -> Answer {
    let permit = app.locks.semaphore("scoring", 3)?.acquire_timeout(SECOND).await?.ok_or(Failed::Busy)?;
    let score = permit.run(ask_for_score(&card)).await?;
    Ok(score.to_string())
}

async fn ask_for_score(card: &str) -> usize {
    card.len()
}

async fn metrics(State(app): State<App>) -> String {
    format!("acquired {}\n", app.seen.0.load(Ordering::Relaxed))
}

/// One instance of the fleet settles; another one goes on when it has ended.
async fn settle(app: App) -> onelock::Result<()> {
    let election = app.locks.election("settlement")?;
    election.run(|term: Term| settle_as(app.clone(), term)).await
}

async fn settle_as(app: App, term: Term) -> Done {
    let token: FencingToken = term.token()?;
    loop {
        let mut transaction = app.accounts.begin().await?;
        fence::postgres::admit(&mut transaction, &LockName::new("settlement")?, token, true).await?;
        // What is due would be settled here.
        transaction.commit().await?;
        tokio::time::sleep(SECOND).await;
    }
}

async fn leader(State(app): State<App>) -> Answer {
    let leader = app.locks.election("settlement")?.leader().await?;
    Ok(leader.map_or_else(|| "nobody".into(), |leader| leader.note))
}

/// A thread without async.
fn export(url: &str) -> onelock::Result<usize> {
    let locks = onelock::blocking::connect(url)?;
    let Some(guard) = locks.mutex("export")?.try_acquire()? else { return Ok(0) };
    let exported = guard.run(|| 1)?;
    guard.release()?;
    Ok(exported)
}

type Answer = Result<String, Failed>;

/// What a caller is told.
#[derive(Debug)]
enum Failed {
    Busy,
    Error(Box<dyn std::error::Error + Send + Sync>),
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

impl axum::response::IntoResponse for Failed {
    fn into_response(self) -> axum::response::Response {
        match self {
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy".to_owned()).into_response(),
            Self::Error(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use onelock::{LossReason, testing};

    use super::*;

    /// Neither a server nor real time: a lost lock stops the work, and half a minute passes at once.
    #[tokio::test(start_paused = true)]
    async fn a_busy_account_is_told_and_a_lost_one_stops_its_work() -> Done {
        let locks = testing::paused()?;
        let accounts = PgPool::connect_lazy("postgres://nowhere/")?;
        let app = App { locks: locks.clone(), accounts, seen: Arc::default() };
        let elsewhere = testing::hold_elsewhere(&locks, "account/7").await?;
        let busy = deposit(State(app), Path((7, 100))).await;
        assert!(matches!(busy, Err(Failed::Busy)), "{busy:?}");
        elsewhere.release().await?;

        let guard = locks.mutex("account/7")?.acquire().await?;
        testing::lose(&guard, LossReason::Expired);
        assert!(guard.run(std::future::pending::<()>()).await.is_err());
        Ok(())
    }
}
