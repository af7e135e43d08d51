//! The memory store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::memory::{MemoryBackend, MemoryStore};
use onelock_core::{Backend, Capabilities, Error, ErrorKind};

use super::{Harness, Store};
use crate::case::Need;
use crate::faults::{Gate, Link};
use crate::verdict::Verdict;

type Wrap = dyn Fn(Arc<dyn Backend>) -> Arc<dyn Backend> + Send + Sync;

/// The memory store, or a backend wrapped around it: a mutant, a decorator.
pub struct Memory {
    name: &'static str,
    wrap: Arc<Wrap>,
}

impl Memory {
    /// The memory store itself.
    #[must_use]
    pub fn new() -> Self {
        Self::wrapped("memory", |backend| backend)
    }

    /// The memory store behind a decorator.
    #[must_use]
    pub fn wrapped(
        name: &'static str,
        wrap: impl Fn(Arc<dyn Backend>) -> Arc<dyn Backend> + Send + Sync + 'static,
    ) -> Self {
        Self { name, wrap: Arc::new(wrap) }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Harness for Memory {
    fn name(&self) -> &'static str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::of_lines();
        capabilities.durable = false;
        capabilities.granularity = Duration::ZERO;
        capabilities
    }

    fn unit(&self) -> Duration {
        Duration::from_millis(200)
    }

    fn lacks(&self, need: Need) -> Option<String> {
        let why = match need {
            Need::Processes => "the store lives in one process",
            Need::Connections | Need::Restart | Need::Pause | Need::Leader => "there is no server",
            Need::Network | Need::Altered => "there is no network",
            Need::Foreign => "nothing foreign can get into the store",
            Need::Password | Need::Tls | Need::Unreachable => "there is nothing to connect to",
            _ => return None,
        };
        Some(why.to_owned())
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let store = MemoryStore::new(self.clock());
        Ok(Box::new(Fresh { store, wrap: Arc::clone(&self.wrap), link: Link::new() }))
    }

    async fn open(&self, url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        Err(Error::new(ErrorKind::Unsupported, format!("{url}: {}", "the store lives in one process")))
    }
}

struct Fresh {
    store: Arc<MemoryStore>,
    wrap: Arc<Wrap>,
    /// Counts what goes through the clients that are never cut.
    link: Arc<Link>,
}

#[async_trait]
impl Store for Fresh {
    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        self.connect_by(&self.link).await
    }

    async fn connect_beside(&self) -> Verdict<Option<Arc<dyn Backend>>> {
        let beside = MemoryStore::new(Memory::new().clock());
        Ok(Some((self.wrap)(Arc::new(MemoryBackend::new(&beside)))))
    }

    async fn requests(&self) -> Verdict<u64> {
        Ok(self.link.requests.get())
    }

    async fn connect_by(&self, link: &Arc<Link>) -> Verdict<Arc<dyn Backend>> {
        let backend = (self.wrap)(Arc::new(MemoryBackend::new(&self.store)));
        Ok(Arc::new(Gate::new(backend, link)))
    }

    async fn residue(&self) -> Verdict<Vec<String>> {
        let (names, waits) = (self.store.names(), self.store.waits());
        let left = (names + waits > 0).then(|| format!("{names} names, {waits} waiting calls"));
        Ok(left.into_iter().collect())
    }

    async fn counters(&self) -> Verdict<u64> {
        Ok(1)
    }
}
