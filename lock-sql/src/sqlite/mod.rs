//! The SQLite store: locks in one file, shared by the processes of one host. See the crate's README for what it
//! promises and how to look at a lock with the `sqlite3` shell.

mod bell;
mod boot;
mod config;
mod error;
mod file;
mod open;
mod opened;
mod queue;
mod step;
mod turn;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::{
    Backend, Capabilities, Clock, Error, ErrorKind, FencingToken, Info, Listing, LockName, Page, Raise,
    Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use tokio::sync::{mpsc, oneshot};

pub use config::{SQLITE_DRIVER, SqliteConfig};
use worker::{Answer, Message, Reply, Verb};

const CAPABILITIES: Capabilities = {
    let mut all = Capabilities::full();
    // The store's clock is the client's own.
    all.granularity = Duration::ZERO;
    all
};

/// Locks in one SQLite file.
///
/// Any number of processes, containers included, may share the file as long as they run on one kernel. Leases run on
/// the host's boot clock, so a step of the wall clock moves nothing; what an earlier boot left is dropped.
///
/// Each backend has one thread and one connection. Verbs that arrive while a transaction is under way share the next
/// one, in the order of their arrival.
pub struct SqliteBackend {
    info: Info,
    queue: mpsc::UnboundedSender<Message>,
    closed: AtomicBool,
}

impl SqliteBackend {
    /// Opens the file, making it when it does not exist, and starts the backend's thread.
    ///
    /// `clock` must be system wide where other processes share the file: [`onelock_core::BootClock`] is.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidConfig`]: no such folder, a folder as the file, an option out of range;
    /// - [`ErrorKind::Denied`]: the file or its folder cannot be written;
    /// - [`ErrorKind::Foreign`]: the file is not ours; it is left as it is, byte for byte;
    /// - [`ErrorKind::Unsupported`]: a newer version wrote it, it is on a network file system, or the operating system
    ///   tells no boot id;
    /// - [`ErrorKind::Full`], [`ErrorKind::Unavailable`]: the disk is full, other writers keep it busy, it fails.
    ///
    /// # Cancel safety
    /// Safe: the thread ends when nobody waits for it any more.
    pub async fn open(mut config: SqliteConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        config.check()?;
        config.path = file::absolute(&config.path)?;
        let address = format!("sqlite://{}", config.path.display());
        let queue = worker::start(config, clock).await.map_err(|e| e.during("open").at(&address))?;
        let info = Info { scheme: "sqlite".into(), address };
        Ok(Self { info, queue, closed: AtomicBool::new(false) })
    }

    async fn call<T>(
        &self,
        operation: &'static str,
        verb: Verb,
        take: impl FnOnce(Answer) -> Option<T>,
    ) -> Result<T> {
        let message = |reply| Message::Call(verb, reply);
        self.ask(message, take).await.map_err(|e| e.during(operation).at(&self.info.address))
    }

    async fn ask<T>(
        &self,
        message: impl FnOnce(Reply) -> Message,
        take: impl FnOnce(Answer) -> Option<T>,
    ) -> Result<T> {
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        let (reply, answer) = oneshot::channel();
        self.queue.send(message(reply)).map_err(|_| self.gone())?;
        let answer = answer.await.map_err(|_| self.gone())??;
        take(answer).ok_or_else(|| Error::new(ErrorKind::Protocol, "the answer to another verb"))
    }

    /// Why the thread is gone.
    fn gone(&self) -> Error {
        if self.closed.load(Ordering::Acquire) {
            closed()
        } else {
            Error::new(ErrorKind::Unavailable, "the thread of the SQLite store has ended")
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the SQLite store was closed")
}

impl fmt::Debug for SqliteBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteBackend").field("address", &self.info.address).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for SqliteBackend {
    fn info(&self) -> Info {
        self.info.clone()
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        let take = |answer| if let Answer::Standing(standing) = answer { Some(standing) } else { None };
        self.call("acquire", Verb::Acquire(request.clone()), take).await
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        let take = |answer| if let Answer::Wake(wake) = answer { Some(wake) } else { None };
        let message = |reply| Message::Wait(ticket.clone(), reply);
        self.ask(message, take).await.map_err(|e| e.during("wait").at(&self.info.address))
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let take = |answer| match answer {
            Answer::Renewed(renewed) if renewed.len() == due.len() => Some(renewed),
            _ => None,
        };
        match self.call("renew", Verb::Renew(due.to_vec()), take).await {
            Ok(renewed) => renewed,
            Err(error) => vec![Err(error); due.len()],
        }
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        let take = |answer| if let Answer::Release(release) = answer { Some(release) } else { None };
        self.call("release", Verb::Release(ticket.clone()), take).await
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        let take = |answer| if let Answer::Raise(raise) = answer { Some(raise) } else { None };
        self.call("raise", Verb::Raise(ticket.clone(), token), take).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let take = |answer| if let Answer::Snapshot(snapshot) = answer { Some(snapshot) } else { None };
        self.call("inspect", Verb::Inspect(name.clone()), take).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        onelock_core::name::check_prefix(prefix)?;
        let verb = Verb::List {
            prefix: prefix.to_owned(),
            after: page.cursor.clone().unwrap_or_default(),
            limit: page.limit.clamp(1, Page::MAX),
        };
        let take = |answer| if let Answer::Listing(listing) = answer { Some(listing) } else { None };
        self.call("list", verb, take).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let take = |answer| if let Answer::Release(release) = answer { Some(release) } else { None };
        self.call("evict", Verb::Evict(name.clone(), token), take).await
    }

    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        let (reply, done) = oneshot::channel();
        if self.queue.send(Message::Close(reply)).is_ok() {
            // An error means that another call closed it meanwhile.
            let _ = done.await;
        }
        Ok(())
    }
}
