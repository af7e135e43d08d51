//! What is measured, as a workload sees it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::data::{Kind, SubjectInfo};
use crate::tap::Tap;

/// Why something could not be measured, for people.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The lease that workloads ask for unless they are about leases: what the library takes when nobody says another.
pub const LEASE: Duration = Duration::from_secs(30);

/// Which lock is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockSpec<'a> {
    /// The lock's name.
    pub name: &'a str,
    /// Alone, with readers, or as one of several.
    pub mode: Mode,
    /// Whether the order of asking is kept.
    pub fair: bool,
}

impl<'a> LockSpec<'a> {
    /// The lock `name` alone, in the order of asking.
    #[must_use]
    pub fn exclusive(name: &'a str) -> Self {
        Self { name, mode: Mode::Exclusive, fair: true }
    }
}

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// By nobody else.
    Exclusive,
    /// By other readers, too.
    Shared,
    /// By up to so many.
    Permit(u32),
}

/// A way to lock: a store through this library, two bare requests by its driver, or another library.
#[async_trait]
pub trait Subject: Send + Sync {
    /// What it is called, on which store it works, and what it is.
    fn info(&self) -> &SubjectInfo;

    /// A client of its own, as a process would have one, ready to lock. Its locks are free after `lease` when it died;
    /// a subject that cannot choose takes the next longer lease it can.
    async fn connect(&self, lease: Duration) -> Result<Arc<dyn Client>, Failure>;

    /// A client as of [`connect`](Self::connect) whose way to the server goes through a tap; `None` where there is no way
    /// that can be tapped.
    async fn connect_tapped(&self, lease: Duration) -> Result<Option<(Arc<dyn Client>, Tap)>, Failure>;

    /// The URL by which another process reaches the same store; `None` where none can. It may hold a password.
    fn url(&self) -> Option<String> {
        None
    }

    /// Whether it can do this at all. A workload that it cannot do is left out for it, with the reason.
    fn lacks(&self, need: Need) -> Option<String>;

    /// The server's own count of requests, if it counts.
    fn counter(&self) -> Option<&Counter> {
        None
    }

    /// How many requests the server has been asked so far, if it counts.
    async fn served(&self) -> Result<Option<u64>, Failure> {
        match self.counter() {
            Some(counter) => Ok(Some(counter().await?)),
            None => Ok(None),
        }
    }
}

/// Asks a server how many requests it got, without those that ask for the count. It may be called from several runtimes.
pub type Counter = Arc<dyn Fn() -> BoxFuture<'static, Result<u64, Failure>> + Send + Sync>;

/// What a workload asks of a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// To wait for a lock until it is free.
    Wait,
    /// To give up at once when it is not.
    Try,
    /// To take it again while it is held.
    Reentry,
    /// Shared locks.
    Shared,
    /// Permits.
    Permits,
    /// To pass waiters by.
    Unfair,
    /// To keep a lock for longer than its lease.
    Renewal,
    /// A client that dies with its locks held.
    Crash,
    /// A bare round trip to the server.
    Ping,
    /// Clients in processes of their own.
    Apart,
}

/// A client of a store.
#[async_trait]
pub trait Client: Send + Sync {
    /// A lock to take, as often as wanted: what can be prepared once is prepared here, without asking the store.
    fn prepare(&self, ask: &LockSpec<'_>) -> Result<Arc<dyn Lock>, Failure>;

    /// Asks the server for the least it answers, and waits for the answer: one round trip and nothing else. False where
    /// there is no such thing.
    async fn ping(&self) -> Result<bool, Failure> {
        Ok(false)
    }

    /// Ends the client and waits for it.
    async fn close(&self) -> Result<(), Failure>;
}

/// A lock that can be taken.
#[async_trait]
pub trait Lock: Send + Sync {
    /// Waits until it is held.
    async fn take(&self) -> Result<Box<dyn Held>, Failure>;

    /// Takes it if it is free.
    async fn try_take(&self) -> Result<Option<Box<dyn Held>>, Failure>;
}

/// A lock that is held.
#[async_trait]
pub trait Held: Send + Sync {
    /// Takes it again for the same owner.
    fn again(&self) -> Result<Box<dyn Held>, Failure>;

    /// Gives it back and waits for the answer.
    async fn release(self: Box<Self>) -> Result<(), Failure>;

    /// Lets go of it without telling the store, as if the process had died. It is called, outside every runtime, after
    /// the one that the client lived on has ended, with all its tasks and whatever connections they had.
    fn abandon(self: Box<Self>);
}

impl SubjectInfo {
    /// What the subject is called in a report: its store, and what it is when it is not ours.
    #[must_use]
    pub fn label(&self) -> String {
        match self.kind {
            Kind::Ours => self.store.clone(),
            Kind::Baseline => format!("{}, driver alone", self.store),
            Kind::Peer => format!("{}, {}", self.store, self.library),
        }
    }
}
