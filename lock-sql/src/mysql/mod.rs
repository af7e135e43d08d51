//! The MySQL and MariaDB store: locks in three tables of a database. See MYSQL.md beside the crate for what it promises,
//! the rights it needs and how to look at a lock with the server's own client.

mod bells;
pub(crate) mod config;
pub(crate) mod error;
mod glances;
mod idle;
mod leaving;
pub(crate) mod link;
mod look;
mod looking;
mod often;
pub(crate) mod open;
mod pace;
mod rows;
pub(crate) mod sql;
mod watch;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::name::{check_prefix, encode};
use onelock_core::{
    Backend, Capabilities, Error, FencingToken, Info, Listing, LockName, Mode, Page, Raise, Release, Renewal,
    Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use sqlx::mysql::MySqlRow;

pub use config::{MYSQL_DRIVER, MySqlConfig, MySqlTls};
use error::is_refused;
use glances::Glances;
use idle::Idle;
use link::{Lane, Link};
use look::room;
use sql::Value;
use watch::Watch;

/// How many entries one request renews. Their names are locked together, so a larger batch would keep others out of
/// more of them for longer.
const BATCH: usize = 128;

/// Locks in a MySQL or MariaDB database.
///
/// Every verb is one request of several statements in one transaction, which locks the row of the name first. A client
/// has a few connections for all its locks and one more for all its waiters.
pub struct MySqlBackend {
    info: Info,
    durable: bool,
    link: Arc<Link>,
    watch: Arc<Watch>,
    idle: Arc<Idle>,
    glances: Glances,
}

impl MySqlBackend {
    /// Connects, checks the server, and makes the tables when there are none and the user may.
    ///
    /// Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidConfig`]: an option out of range, no such database;
    /// - [`ErrorKind::Unavailable`], [`ErrorKind::Timeout`]: the server cannot be reached, is read-only or does not answer;
    /// - [`ErrorKind::Denied`]: wrong credentials, a right is missing (the message names it);
    /// - [`ErrorKind::Unsupported`]: a cluster with several writers, a server that is too old, tables of another version, commits that
    ///   do not wait for the disk and no `durability=relaxed`;
    /// - [`ErrorKind::Foreign`]: tables of our names that are not ours; they are left alone.
    ///
    /// # Cancel safety
    /// Safe: the connections are closed.
    pub async fn connect(config: MySqlConfig) -> Result<Self> {
        config.check()?;
        let address = config.address();
        let link = Arc::new(Link::new(&config));
        let at = |error: Error| error.during("open").at(&address);
        let found = open::open(&link, &config).await.map_err(at)?;
        let idle = Arc::new(Idle::default());
        tokio::spawn(idle::keep_tidy(Arc::downgrade(&link), Arc::downgrade(&idle)));
        let info = Info { scheme: "mysql".into(), address };
        Ok(Self {
            info,
            durable: found.durable,
            link,
            watch: Arc::default(),
            idle,
            glances: Glances::default(),
        })
    }

    async fn try_acquire(&self, request: &Request) -> Result<Standing> {
        let encoded = request.name.encoded();
        if let Some(busy) = self.glances.refused(&self.link, &encoded, request).await? {
            return Ok(busy);
        }
        let known = self.idle.used(&encoded);
        let (holder, mode) = (request.holder.as_u128().to_be_bytes(), request.mode.to_string());
        let name = Value::Bytes(encoded.as_bytes());
        let busy = if request.queue { "NULL".into() } else { self.link.sql.busy.fill(&[("name", name)]) };
        let ahead = look::ahead(request.mode, false);
        let values = [
            ("busy", Value::Part(&busy)),
            ("ahead", Value::Part(&ahead)),
            ("name", name),
            ("holder", Value::Bytes(&holder)),
            ("mode", Value::Bytes(mode.as_bytes())),
            ("room", Value::Int(room(request.mode).into())),
            ("queue", Value::Int(request.queue.into())),
            ("lease", Value::Int(micros(request.lease, request.delay))),
            ("waiter_lease", Value::Int(micros(request.waiter_lease, request.delay))),
            ("note", Value::Bytes(request.note.as_str().as_bytes())),
        ];
        let (link, sql) = (&*self.link, &self.link.sql);
        let read = |rows: &[MySqlRow], _| rows::joined(rows, request);
        let joined = match request.mode {
            _ if !known || !request.queue => None,
            Mode::Exclusive => Some(link.ask_often(Lane::Verb, (&link.join, &sql.join), &values, read).await),
            _ => Some(link.ask(Lane::Verb, &sql.join.fill(&values), read).await),
        };
        let (standing, ahead, before) = match joined.filter(|joined| !joined.as_ref().is_err_and(is_refused))
        {
            Some(joined) => joined?,
            None => link.ask(Lane::Verb, &sql.acquire.fill(&values), read).await?,
        };
        self.glances.told(&encoded, &standing);
        if let Standing::Waiting(place) = &standing {
            self.watch.joined(&encoded, place.token, ahead);
            if let Some(before) = before {
                self.watch.bells.joined(&encoded, place.token, before, ahead);
            }
        }
        Ok(standing)
    }

    async fn try_raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        let (name, holder) = (ticket.name.encoded(), ticket.holder.as_u128().to_be_bytes());
        let sql = self.link.sql.raise.fill(&[
            ("name", Value::Bytes(name.as_bytes())),
            ("holder", Value::Bytes(&holder)),
            ("number", Value::Int(token.get())),
        ]);
        let ours = self.link.ask(Lane::Verb, &sql, |rows, _| rows::flag(rows)).await?;
        Ok(if ours { Raise::Raised } else { Raise::NotHeld })
    }

    async fn try_inspect(&self, name: &LockName) -> Result<Snapshot> {
        let encoded = name.encoded();
        let sql = self.link.sql.inspect.fill(&[("name", Value::Bytes(encoded.as_bytes()))]);
        let read = |rows: &[MySqlRow], _| rows::snapshot(rows, name);
        let (snapshot, dead) = self.link.ask(Lane::Verb, &sql, read).await?;
        if dead {
            idle::retire(&self.link, &[encoded.into_owned()]).await?;
        }
        Ok(snapshot)
    }

    async fn try_list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        check_prefix(prefix)?;
        let after = page.cursor.as_deref().map(LockName::new).transpose()?;
        let after = after.as_ref().map(LockName::encoded).unwrap_or_default();
        let limit = page.limit.clamp(1, Page::MAX);
        let from = encode(prefix);
        // Encoded names are ASCII without this character.
        let until = format!("{from}\u{7f}");
        let sql = self.link.sql.list.fill(&[
            ("from", Value::Bytes(from.as_bytes())),
            ("until", Value::Bytes(until.as_bytes())),
            ("after", Value::Bytes(after.as_bytes())),
            ("limit", Value::Int(i64::try_from(limit).unwrap_or(1) + 1)),
        ]);
        self.link.ask(Lane::Verb, &sql, |rows, _| rows::listing(rows, limit)).await
    }

    async fn renew_one(&self, due: &Renewal) -> Result<Renewed> {
        let ticket = &due.ticket;
        let (name, holder) = (ticket.name.encoded(), ticket.holder.as_u128().to_be_bytes());
        let sql = self.link.sql.renew_one.fill(&[
            ("name", Value::Bytes(name.as_bytes())),
            ("holder", Value::Bytes(&holder)),
            ("lease", Value::Int(micros(due.lease, ticket.delay))),
            ("waiter_lease", Value::Int(micros(due.waiter_lease, ticket.delay))),
        ]);
        self.link.ask(Lane::Renew, &sql, |rows, _| rows::renewed_one(rows, due)).await
    }

    async fn renew_batch(&self, due: &[&Renewal]) -> Result<Vec<Renewed>> {
        if let [due] = due {
            return Ok(vec![self.renew_one(due).await?]);
        }
        let mut rows = String::new();
        let encoded: Vec<_> = due.iter().map(|renewal| renewal.ticket.name.encoded()).collect();
        for (item, renewal) in due.iter().enumerate() {
            let ticket = &renewal.ticket;
            let holder = ticket.holder.as_u128().to_be_bytes();
            // The names of the columns are those of the first row.
            rows.push_str(if item == 0 { "SELECT " } else { " UNION ALL SELECT " });
            for (column, value) in [
                ("item", Value::Int(i64::try_from(item).unwrap_or(0))),
                ("name", Value::Bytes(encoded[item].as_bytes())),
                ("holder", Value::Bytes(&holder)),
                ("lease", Value::Int(micros(renewal.lease, ticket.delay))),
                ("waiter_lease", Value::Int(micros(renewal.waiter_lease, ticket.delay))),
            ] {
                value.write(&mut rows);
                rows.push_str(" AS ");
                rows.push_str(column);
                rows.push(if column == "waiter_lease" { ' ' } else { ',' });
            }
        }
        let mut names: Vec<_> = encoded.iter().map(AsRef::as_ref).collect();
        names.sort_unstable();
        names.dedup();
        let values = [("names", Value::List(&names)), ("due", Value::Part(&rows))];
        let sql = self.link.sql.renew.fill(&values);
        self.link.ask(Lane::Renew, &sql, |rows, _| rows::renewed(rows, due)).await
    }

    fn explain(&self, operation: &'static str) -> impl Fn(Error) -> Error {
        move |error| error.during(operation).at(&self.info.address)
    }
}

/// A lease as the store keeps it, in whole microseconds, never shorter than asked.
fn micros(lease: Duration, delay: Duration) -> i64 {
    let nanos = lease.saturating_add(delay).as_nanos();
    // Above that, sums on the server would overflow; the core allows far less.
    i64::try_from(nanos.div_ceil(1000)).unwrap_or(i64::MAX).min(1 << 60)
}

/// Cuts `due` into batches in which no entry comes twice: an update takes only one lease for each.
fn batches(due: &[Renewal]) -> Vec<Vec<usize>> {
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut at: HashMap<_, usize> = HashMap::new();
    let mut first = 0;
    for (i, renewal) in due.iter().enumerate() {
        let key = (&renewal.ticket.name, renewal.ticket.holder);
        let mut batch = at.get(&key).map_or(first, |last| last + 1).max(first);
        while batches.get(batch).is_some_and(|items| items.len() == BATCH) {
            batch += 1;
        }
        if batch == batches.len() {
            batches.push(Vec::new());
        }
        batches[batch].push(i);
        while batches.get(first).is_some_and(|items| items.len() == BATCH) {
            first += 1;
        }
        at.insert(key, batch);
    }
    batches
}

impl fmt::Debug for MySqlBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlBackend").field("address", &self.info.address).finish_non_exhaustive()
    }
}

impl Drop for MySqlBackend {
    fn drop(&mut self) {
        // The tasks of this client end; connections in use end with their requests.
        self.watch.close();
        self.link.close();
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for MySqlBackend {
    fn info(&self) -> Info {
        self.info.clone()
    }

    fn capabilities(&self) -> Capabilities {
        let mut all = Capabilities::full();
        all.durable = self.durable;
        all
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.try_acquire(request).await.map_err(self.explain("acquire"))
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.watch.wait(&self.link, ticket).await.map_err(self.explain("wait"))
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut answers: Vec<Result<Renewed>> = due.iter().map(|_| Ok(Renewed::NotHeld)).collect();
        for batch in batches(due) {
            let items: Vec<_> = batch.iter().map(|&i| &due[i]).collect();
            match self.renew_batch(&items).await {
                Ok(renewed) => {
                    for (i, answer) in batch.into_iter().zip(renewed) {
                        answers[i] = Ok(answer);
                    }
                }
                Err(error) => {
                    let error = self.explain("renew")(error);
                    for i in batch {
                        answers[i] = Err(error.clone());
                    }
                }
            }
        }
        answers
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.try_release(ticket).await.map_err(self.explain("release"))
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        self.try_raise(ticket, token).await.map_err(self.explain("raise"))
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.try_inspect(name).await.map_err(self.explain("inspect"))
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.try_list(prefix, page).await.map_err(self.explain("list"))
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let evicted = self.try_evict(name, token).await.map_err(self.explain("evict"))?;
        if evicted == Release::Released {
            // A waiter of this client learns that it is gone; those of others by their next look or renewal.
            self.watch.wake(&name.encoded(), token, Wake::Ask);
        }
        Ok(evicted)
    }

    async fn close(&self) -> Result<()> {
        if self.link.open().is_ok() {
            // What fails is found by the next client that connects.
            let _ = idle::retire_quiet(&self.link, &self.idle, Duration::ZERO).await;
        }
        self.watch.close();
        self.link.close();
        Ok(())
    }
}
