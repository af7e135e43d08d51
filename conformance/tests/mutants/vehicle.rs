//! What carries the locks of the literature into the suite: a harness over the key-value server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use onelock_conformance::faults::{Gate, Link};
use onelock_conformance::verdict::Verdict;
use onelock_conformance::{Harness, Need, Store};
use onelock_core::{Backend, Capabilities, EntryView, Error, ErrorKind, FencingToken, Info, Mode};

use super::kv::Server;
use super::{children, redlock, single};

/// A lock of the literature.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lock {
    /// One key.
    Single(single::Way),
    /// Numbered children.
    Children(children::Way),
    /// Five servers.
    Redlock(redlock::Way),
}

pub(crate) struct Vehicle(pub(crate) Lock);

impl Vehicle {
    fn servers(&self) -> usize {
        if matches!(self.0, Lock::Redlock(_)) { 5 } else { 1 }
    }
}

#[async_trait]
impl Harness for Vehicle {
    fn name(&self) -> &'static str {
        "literature"
    }

    fn capabilities(&self) -> Capabilities {
        match self.0 {
            Lock::Single(_) => single::capabilities(),
            Lock::Children(_) => children::capabilities(),
            Lock::Redlock(_) => redlock::capabilities(),
        }
    }

    fn lacks(&self, need: Need) -> Option<String> {
        let offers = matches!(
            need,
            Need::Residue
                | Need::Can(_)
                | Need::WaiterLease
                | Need::Link
                | Need::Reconnect
                | Need::Line
                | Need::Thousands
        );
        (!offers).then(|| "the server is small".to_owned())
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let servers = (0..self.servers()).map(|_| Server::new(self.clock())).collect();
        Ok(Box::new(Fresh { lock: self.0, servers, clients: AtomicUsize::new(0), link: Link::new() }))
    }

    async fn open(&self, _: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        Err(unsupported())
    }
}

struct Fresh {
    lock: Lock,
    servers: Vec<Arc<Server>>,
    clients: AtomicUsize,
    /// Of the clients that are never cut.
    link: Arc<Link>,
}

#[async_trait]
impl Store for Fresh {
    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        self.connect_by(&self.link).await
    }

    async fn connect_by(&self, link: &Arc<Link>) -> Verdict<Arc<dyn Backend>> {
        let client = self.clients.fetch_add(1, Ordering::Relaxed);
        let backend: Arc<dyn Backend> = match self.lock {
            Lock::Single(way) => Arc::new(single::Single::new(&self.servers[0], way, client)),
            Lock::Children(way) => Arc::new(children::Children::new(&self.servers[0], way)),
            // The link is the way to a majority of the servers: the others stay in reach.
            Lock::Redlock(way) => {
                return Ok(Arc::new(redlock::Redlock::new(&self.servers, way, client, link)));
            }
        };
        Ok(Arc::new(Gate::new(backend, link)))
    }

    async fn residue(&self) -> Verdict<Vec<String>> {
        Ok(self.servers.iter().flat_map(|server| server.keys()).collect())
    }

    async fn counters(&self) -> Verdict<u64> {
        Ok(1)
    }
}

/// Nothing that a store may do without.
pub(crate) fn none() -> Capabilities {
    let mut capabilities = Capabilities::of_lines();
    capabilities.shared = false;
    capabilities.permits = false;
    capabilities.fifo = false;
    capabilities.fencing = false;
    capabilities.raise = false;
    capabilities.delay = false;
    capabilities.push = false;
    capabilities.list = false;
    capabilities.durable = false;
    capabilities
}

pub(crate) fn info() -> Info {
    Info::new("literature", "in memory")
}

pub(crate) fn unsupported() -> Error {
    Error::new(ErrorKind::Unsupported, "this lock does not have it")
}

/// An entry as people see it.
pub(crate) fn view(token: FencingToken) -> EntryView {
    EntryView::new(token, Mode::Exclusive, String::new())
}
