//! The memory store: the executable specification of a store, and a real one for a single process.
//!
//! Leases run on the injected clock, the same one as the client's deadlines, so a test that pauses the clock pauses both.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Weak};

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::backend::{Backend, Info, Raise, Release, Renewal, Renewed, Request, Standing, Ticket, Wake};
use crate::capabilities::Capabilities;
use crate::clock::{Clock, Timestamp};
use crate::driver::{Context, Driver, opening};
use crate::error::{Error, ErrorKind, Result};
use crate::holder::{HolderId, HolderMap};
use crate::name::LockName;
use crate::snapshot::{Listing, Page, Snapshot};
use crate::store::Checked;
use crate::token::FencingToken;
use crate::toolkit::{Lines, Mutex};
use crate::url::StoreUrl;

/// How `memory:` URLs are opened. `memory://` is a fresh store for this client alone; clients of `memory://NAME` in one
/// process share the store of that name for as long as one of them lives.
pub const DRIVER: Driver = Driver::new("memory", &["memory"], |url, context| opening(open(url, context)))
    .example("memory://jobs")
    .about("inside this process; always there")
    .capabilities(CAPABILITIES);

/// One clock serves the store and the client.
const CAPABILITIES: Capabilities =
    Capabilities::of_lines().durable(false).granularity(std::time::Duration::ZERO);

async fn open(url: StoreUrl, Context { clock, .. }: Context) -> Result<MemoryBackend> {
    let store = match &url.hosts[..] {
        [] => MemoryStore::new(clock),
        [(name, None)] if url.path.is_empty() => MemoryStore::named(name, clock)?,
        _ => return Err(Error::new(ErrorKind::InvalidConfig, "a memory URL is memory:// or memory://NAME")),
    };
    Ok(MemoryBackend::new(&store))
}

/// The lines of a memory store. Any number of [`MemoryBackend`]s, one per client, stand on one.
pub struct MemoryStore {
    name: String,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lines: Lines,
    waiting: HolderMap<Arc<Notify>>,
}

impl MemoryStore {
    /// An empty store on this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { name: String::new(), clock, state: Mutex::default() })
    }

    /// The store of this name in this process; made on `clock` if nobody uses it.
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`] when it is in use on another clock: what has ended by one still lives by the other.
    pub fn named(name: &str, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        static STORES: LazyLock<Mutex<HashMap<String, Weak<MemoryStore>>>> = LazyLock::new(Mutex::default);
        let mut stores = STORES.lock();
        if let Some(store) = stores.get(name).and_then(Weak::upgrade) {
            if !store.clock.same(&*clock) {
                let text = format!("memory://{name} is in use on another clock; its clients must share one");
                return Err(Error::new(ErrorKind::Misuse, text));
            }
            return Ok(store);
        }
        stores.retain(|_, store| store.strong_count() > 0);
        let store = Arc::new(Self { name: name.to_owned(), clock, state: Mutex::default() });
        stores.insert(name.to_owned(), Arc::downgrade(&store));
        Ok(store)
    }

    /// How many names have an entry, living or not yet dropped: for leak checks.
    #[must_use]
    pub fn names(&self) -> usize {
        self.state.lock().lines.names().len()
    }

    /// How many `wait` calls are under way: for leak checks.
    #[must_use]
    pub fn waits(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Runs a verb, and wakes whose waits it has ended.
    fn step<T>(&self, verb: impl FnOnce(&mut Lines, Timestamp) -> T) -> T {
        let mut state = self.state.lock();
        let State { lines, waiting } = &mut *state;
        let answer = verb(lines, self.clock.now());
        for holder in lines.take_woken() {
            if let Some(notify) = waiting.get(&holder) {
                notify.notify_one();
            }
        }
        answer
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("name", &self.name).field("names", &self.names()).finish()
    }
}

/// A client of a [`MemoryStore`].
pub type MemoryBackend = Checked<Memory>;

/// The verbs of [`MemoryBackend`].
#[derive(Debug)]
pub struct Memory(Arc<MemoryStore>);

impl MemoryBackend {
    /// A new client of `store`.
    #[must_use]
    pub fn new(store: &Arc<MemoryStore>) -> Self {
        Self::over(Memory(Arc::clone(store)))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Memory {
    fn info(&self) -> Info {
        Info::new("memory", format!("memory://{}", self.0.name))
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.0.step(|lines, now| lines.acquire(now, request))
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        let store = &self.0;
        let notify = Arc::new(Notify::new());
        {
            // Looking at the line and standing ready to be woken is one step, so no wake-up falls between.
            let mut state = store.state.lock();
            if let Some(wake) = state.lines.wake(ticket) {
                return Ok(wake);
            }
            state.waiting.insert(ticket.holder, Arc::clone(&notify));
        }
        let _waiting = WaitingCall { store, holder: ticket.holder };
        notify.notified().await;
        Ok(store.state.lock().lines.wake(ticket).unwrap_or(Wake::Ask))
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        due.iter().map(|renewal| Ok(self.0.step(|lines, now| lines.renew(now, renewal)))).collect()
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        Ok(self.0.step(|lines, now| lines.release(now, ticket)))
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        self.0.step(|lines, now| lines.raise(now, ticket, token))
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        Ok(self.0.step(|lines, now| lines.inspect(now, name)))
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.0.step(|lines, now| lines.list(now, prefix, page))
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        Ok(self.0.step(|lines, now| lines.evict(now, name, token)))
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// Forgets a waiting call when it ends or is dropped.
struct WaitingCall<'a> {
    store: &'a MemoryStore,
    holder: HolderId,
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.store.state.lock().waiting.remove(&self.holder);
    }
}
