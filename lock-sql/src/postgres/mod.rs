//! The PostgreSQL store: some tables and a function for each verb. See the crate's README for what it promises, the rights
//! it needs and how to look at a lock with `psql`.

mod acquire;
mod answer;
mod call;
pub(crate) mod config;
pub(crate) mod error;
mod inbox;
mod listen;
mod migrate;
mod pool;
mod verbs;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::{
    Backend, Capabilities, Error, ErrorKind, FencingToken, Grant, HolderId, Info, Listing, LockName, Page,
    Place, Raise, Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use tokio::task::JoinHandle;

pub use config::{POSTGRES_DRIVER, PostgresConfig, SslMode};
pub use migrate::migration;

use crate::Durability;
use answer::{State, read_listed, read_release, read_states, read_view};
use call::{Call, Value};
use error::explain;
use inbox::{Inbox, seen};
use pool::{Again, Pool};
use verbs::Sql;

/// How many renewals share a request at most: the names of a request are locked together.
const RENEWED_TOGETHER: usize = 1_000;

/// Locks in a PostgreSQL database.
///
/// A verb is one call of a function, which first takes the advisory lock of the name. A thousand locks and waiters share
/// a handful of connections, and one more that listens for promotions.
pub struct PostgresBackend {
    info: Info,
    durability: Durability,
    shared: Arc<Shared>,
    closed: AtomicBool,
    tasks: [JoinHandle<()>; 2],
}

/// What the verbs and the background tasks use.
struct Shared {
    pool: Arc<Pool>,
    inbox: Inbox,
    sql: Sql,
}

impl PostgresBackend {
    /// Connects, makes the tables and functions when they are missing and `migrate` is on, and starts to listen.
    /// To be called within a tokio runtime, which then serves the notifications.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidConfig`]: an option out of range, no such database, no schema and `migrate` off;
    /// - [`ErrorKind::Denied`]: the login or a right is missing, or the connection is not as secure as asked;
    /// - [`ErrorKind::Foreign`]: the schema holds what is not ours; [`ErrorKind::Unsupported`]: another version of it;
    /// - [`ErrorKind::Unavailable`]: the server cannot be reached.
    ///
    /// # Cancel safety
    /// Safe: a migration is one transaction.
    pub async fn open(config: PostgresConfig) -> Result<Self> {
        config.check()?;
        let address = config.address();
        let named = |error: Error| error.during("open").at(&address);
        let sql = Sql::new(&config.schema, config.durability);
        let prepared = [&sql.acquire, &sql.renew, &sql.release].map(|verb| verb.sql.clone()).to_vec();
        let pool = Arc::new(Pool::new(&config, prepared));
        let mut conn = pool.connect().await.map_err(named)?;
        migrate::ensure(&mut conn, &config.schema, config.migrate).await.map_err(named)?;
        pool.take_in(conn);
        let inbox = Inbox::new(HolderId::random()?);
        let shared = Arc::new(Shared { pool, inbox, sql });
        let tasks =
            [tokio::spawn(listen::listen(shared.clone())), tokio::spawn(listen::look(shared.clone()))];
        // So that the first waiter need not be looked after. Where listening does not work it is done without.
        let _ = tokio::time::timeout(config.connect_timeout, shared.inbox.tried.notified()).await;
        shared.pool.warm().await.map_err(named)?;
        let info = Info { scheme: "postgres".into(), address };
        Ok(Self { info, durability: config.durability, shared, closed: AtomicBool::new(false), tasks })
    }

    async fn fetch<T>(
        &self,
        operation: &'static str,
        again: Again,
        call: Call<'_>,
        read: impl Fn(&[PgRow]) -> Result<T> + Send,
    ) -> Result<T> {
        self.check_open().map_err(|e| self.named(operation, e))?;
        self.shared.pool.fetch(again, &call, read).await.map_err(|e| self.named(operation, e))
    }

    /// The only row of an answer, read.
    async fn one<T>(
        &self,
        operation: &'static str,
        again: Again,
        call: Call<'_>,
        read: impl Fn(&PgRow) -> Result<T> + Send,
    ) -> Result<T> {
        self.fetch(operation, again, call, only(read)).await
    }

    fn named(&self, operation: &'static str, error: Error) -> Error {
        error.during(operation).at(&self.info.address)
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the PostgreSQL store was closed"));
        }
        Ok(())
    }

    /// Where the server is to tell a promotion: nowhere while nothing would be heard.
    fn channel(&self) -> Value {
        let inbox = &self.shared.inbox;
        Value::Text(if inbox.hears() { inbox.channel.clone() } else { String::new() })
    }

    async fn renew_some(&self, due: &[Renewal]) -> Result<Vec<Result<Renewed>>> {
        // Those of one name together, and in the order of its line: as those who promote lock the rows.
        let mut order: Vec<_> = due.iter().enumerate().collect();
        order.sort_by(|(_, a), (_, b)| {
            (&a.ticket.name, a.ticket.token).cmp(&(&b.ticket.name, b.ticket.token))
        });
        let sorted = || order.iter().map(|(_, renewal)| *renewal);
        let values = vec![
            Value::Texts(sorted().map(|r| r.ticket.name.encoded().into_owned()).collect()),
            Value::Blobs(sorted().map(|r| blob(r.ticket.holder)).collect()),
            Value::Bigs(sorted().map(|r| micros(r.lease)).collect()),
            Value::Bigs(sorted().map(|r| micros(r.waiter_lease)).collect()),
            Value::Bigs(sorted().map(|r| micros(r.ticket.delay)).collect()),
            self.channel(),
        ];
        let holders: Vec<_> = sorted().map(|r| r.ticket.holder).collect();
        let call = Call::new(&self.shared.sql.renew, values);
        let states = self.one("renew", Again::Yes, call, |row| read_states(row, &holders)).await?;
        let mut answers: Vec<_> =
            order.iter().zip(states).map(|((i, due), state)| (*i, Ok(self.renewed(due, state)))).collect();
        answers.sort_by_key(|(i, _)| *i);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    fn renewed(&self, renewal: &Renewal, state: State) -> Renewed {
        let holder = renewal.ticket.holder;
        match state {
            State::Held(token) => {
                // In case the push was lost.
                self.shared.inbox.settle(holder, Wake::Held(token));
                Renewed::Held(Grant { token, lease: renewal.lease })
            }
            State::Waiting(token, retry_after) => {
                Renewed::Waiting(Place { token: Some(token), lease: renewal.waiter_lease, retry_after })
            }
            State::None(_) => {
                self.shared.inbox.settle(holder, Wake::Ask);
                Renewed::NotHeld
            }
        }
    }
}

impl Drop for PostgresBackend {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBackend").field("address", &self.info.address).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for PostgresBackend {
    fn info(&self) -> Info {
        self.info.clone()
    }

    fn capabilities(&self) -> Capabilities {
        let mut all = Capabilities::full();
        all.durable = self.durability == Durability::Durable;
        all
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        let holder = request.holder;
        // Before it is sent: the promotion may be told before the answer is read.
        let slot = request.queue.then(|| self.shared.inbox.slot(&request.name, holder).0);
        let standing = self.join(request).await;
        match (&standing, slot) {
            (Ok(Standing::Waiting(_)), Some(slot)) => self.shared.inbox.waits(&slot),
            _ => self.shared.inbox.settle(holder, Wake::Ask),
        }
        standing
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.check_open().map_err(|e| self.named("wait", e))?;
        let (slot, known) = self.shared.inbox.slot(&ticket.name, ticket.holder);
        self.shared.inbox.waits(&slot);
        if !known {
            // What was told before the slot was there went unheard.
            let values = vec![
                Value::Texts(vec![ticket.name.encoded().into_owned()]),
                Value::Blobs(vec![blob(ticket.holder)]),
            ];
            let call = Call::new(&self.shared.sql.watched, values);
            // In a box, which goes when it is answered: a wait is kept for long, and its future with it.
            let asked = self.one("wait", Again::Yes, call, |row| row.try_get(0).map_err(explain));
            let told: Option<String> = Box::pin(asked).await?;
            match seen(told.as_deref(), ticket.holder) {
                None => {}
                Some(Wake::Ask) => {
                    self.shared.inbox.settle(ticket.holder, Wake::Ask);
                    return Ok(Wake::Ask);
                }
                Some(held) => slot.ring(held),
            }
        }
        let wake = slot.wait().await;
        self.check_open().map_err(|e| self.named("wait", e))?;
        Ok(wake)
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut answers = Vec::with_capacity(due.len());
        for part in due.chunks(RENEWED_TOGETHER) {
            match self.renew_some(part).await {
                Ok(some) => answers.extend(some),
                Err(error) => answers.extend(part.iter().map(|_| Err(error.clone()))),
            }
        }
        answers
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.shared.inbox.settle(ticket.holder, Wake::Ask);
        let values = vec![Value::Text(ticket.name.encoded().into_owned()), Value::Blob(blob(ticket.holder))];
        self.one("release", Again::No, Call::new(&self.shared.sql.release, values), read_release).await
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        let values = vec![
            Value::Text(ticket.name.encoded().into_owned()),
            Value::Blob(blob(ticket.holder)),
            Value::Big(token.get()),
        ];
        self.one("raise", Again::Yes, Call::new(&self.shared.sql.raise, values), |row| {
            let raised: bool = row.try_get(0).map_err(explain)?;
            Ok(if raised { Raise::Raised } else { Raise::NotHeld })
        })
        .await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let call = Call::new(&self.shared.sql.inspect, vec![Value::Text(name.encoded().into_owned())]);
        let read = |rows: &[PgRow]| rows.iter().map(read_view).collect::<Result<Vec<_>>>();
        let mut holders = self.fetch("inspect", Again::Yes, call, read).await?;
        let waiters = holders.split_off(onelock_core::mode::holders(holders.iter().map(|view| view.mode)));
        Ok(Snapshot { holders, waiters, ..Snapshot::empty(name.clone()) })
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        onelock_core::name::check_prefix(prefix)?;
        let limit = page.limit.clamp(1, Page::MAX);
        let first = onelock_core::name::encode(prefix);
        // Encoded names are of ASCII below 0x7F, so this is just behind all that begin with `first`.
        let end = format!("{first}\u{7F}");
        let after = page.cursor.clone().unwrap_or_default();
        let more = i32::try_from(limit).unwrap_or(i32::MAX - 1) + 1;
        let values =
            vec![Value::Text(first.into_owned()), Value::Text(end), Value::Text(after), Value::Int(more)];
        let read = |rows: &[PgRow]| {
            let names = rows.iter().take(limit).map(read_listed).collect::<Result<Vec<_>>>()?;
            Ok((names, rows.len() > limit))
        };
        let call = Call::new(&self.shared.sql.list, values);
        let (names, more) = self.fetch("list", Again::Yes, call, read).await?;
        let next = if more { names.last().map(|listed| listed.name.encoded().into_owned()) } else { None };
        Ok(Listing { names, next })
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let values = vec![Value::Text(name.encoded().into_owned()), Value::Big(token.get())];
        self.one("evict", Again::No, Call::new(&self.shared.sql.evict, values), read_release).await
    }

    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        for task in &self.tasks {
            task.abort();
        }
        self.shared.pool.close().await;
        self.shared.inbox.ring_all();
        Ok(())
    }
}

/// For an answer of one row.
fn only<T>(read: impl Fn(&PgRow) -> Result<T>) -> impl Fn(&[PgRow]) -> Result<T> {
    move |rows| match rows {
        [row] => read(row),
        _ => Err(Error::new(ErrorKind::Protocol, format!("{} rows instead of one", rows.len()))),
    }
}

fn blob(holder: HolderId) -> Vec<u8> {
    holder.as_u128().to_be_bytes().to_vec()
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}
