//! The memory store: the executable specification of a store, and a real one for a single process.
//!
//! Leases run on the injected clock, the same one as the client's deadlines, so a test that pauses the clock pauses both.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::backend::{Backend, Info, Raise, Release, Renewal, Renewed, Request, Standing, Ticket, Wake};
use crate::capabilities::Capabilities;
use crate::clock::Clock;
use crate::driver::{Context, Driver, opening};
use crate::error::{Error, ErrorKind, Result};
use crate::holder::{HolderId, HolderMap};
use crate::line::{Line, Promoted};
use crate::name::LockName;
use crate::snapshot::{ListedName, Listing, Page, Snapshot};
use crate::store::Checked;
use crate::token::{FencingToken, TokenEpoch};
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
    counter: i64,
    lines: BTreeMap<LockName, Line>,
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
        let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
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
        self.lock().lines.len()
    }

    /// How many `wait` calls are under way: for leak checks.
    #[must_use]
    pub fn waits(&self) -> usize {
        self.lock().waiting.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Settles the line of `name`, runs `step` on it, settles again, wakes the promoted and forgets an empty line.
    fn with_line<T>(&self, name: &LockName, step: impl FnOnce(&mut Line, &mut i64) -> T) -> T {
        let mut promoted = Vec::new();
        let mut state = self.lock();
        let State { counter, lines, waiting } = &mut *state;
        let now = self.clock.now();
        let answer = if let Some(line) = lines.get_mut(name) {
            line.settle(now, &mut promoted);
            let answer = step(line, counter);
            line.settle(now, &mut promoted);
            if line.is_empty() {
                lines.remove(name);
            }
            answer
        } else {
            let mut line = Line::default();
            let answer = step(&mut line, counter);
            if !line.is_empty() {
                lines.insert(name.clone(), line);
            }
            answer
        };
        wake(waiting, &promoted);
        answer
    }
}

fn wake(waiting: &HolderMap<Arc<Notify>>, promoted: &[Promoted]) {
    for entry in promoted {
        if let Some(notify) = waiting.get(&entry.holder) {
            notify.notify_one();
        }
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
        let store = &self.0;
        store.with_line(&request.name, |line, counter| {
            let next = request.epoch.next(*counter)?;
            Ok(line.acquire(store.clock.now(), request, || {
                *counter = next.get();
                next
            }))
        })
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        let store = &self.0;
        let notify = Arc::new(Notify::new());
        // Looking at the line and standing ready to be woken is one step, so no wake-up falls between.
        let look = |ready: bool| {
            let mut state = store.lock();
            let entry = state.lines.get(&ticket.name).and_then(|line| {
                line.entries().iter().find(|e| e.holder == ticket.holder).map(|e| (e.held, e.token))
            });
            match entry {
                Some((true, token)) => Some(Wake::Held(token)),
                Some((false, _)) if ready => {
                    state.waiting.insert(ticket.holder, Arc::clone(&notify));
                    None
                }
                _ => Some(Wake::Ask),
            }
        };
        if let Some(wake) = look(true) {
            return Ok(wake);
        }
        let _waiting = Waiting { store, holder: ticket.holder };
        notify.notified().await;
        Ok(look(false).unwrap_or(Wake::Ask))
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let one = |renewal: &Renewal| {
            let store = &self.0;
            Ok(store.with_line(&renewal.ticket.name, |line, _| line.renew(self.0.clock.now(), renewal)))
        };
        due.iter().map(one).collect()
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        let store = &self.0;
        let was = store.with_line(&ticket.name, |line, _| line.remove(ticket.holder));
        Ok(if was { Release::Released } else { Release::NotHeld })
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        let store = &self.0;
        store.with_line(&ticket.name, |line, counter| {
            if !line.contains(ticket.holder) {
                return Ok(Raise::NotHeld);
            }
            // Only a client of that epoch may begin it.
            TokenEpoch::of(*counter).check_raise(token)?;
            *counter = (*counter).max(token.get());
            Ok(Raise::Raised)
        })
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let store = &self.0;
        let (holders, waiters) = store.with_line(name, |line, _| line.view(store.clock.now()));
        Ok(Snapshot::new(name.clone(), holders, waiters))
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        let store = &self.0;
        let now = store.clock.now();
        let (mut promoted, mut listing) = (Vec::new(), Listing::default());
        let mut state = store.lock();
        let State { lines, waiting, .. } = &mut *state;
        let from = page.cursor.as_deref().map(|c| LockName::new(c).map(Bound::Excluded)).transpose()?;
        let from = match (from, LockName::new(prefix)) {
            (Some(from), _) => from,
            (None, Ok(prefix)) => Bound::Included(prefix),
            (None, Err(_)) => Bound::Unbounded,
        };
        for (name, line) in lines.range_mut((from, Bound::Unbounded)) {
            if !name.as_str().starts_with(prefix) {
                break;
            }
            line.settle(now, &mut promoted);
            if line.is_empty() {
                continue;
            }
            if listing.names.len() == page.limit {
                listing.next = listing.names.last().map(|last: &ListedName| last.name.as_str().to_owned());
                break;
            }
            let holders = line.holders();
            let waiters = line.entries().len() - holders;
            listing.names.push(ListedName::new(name.clone(), holders, waiters));
        }
        wake(waiting, &promoted);
        Ok(listing)
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let store = &self.0;
        let holder =
            store.with_line(name, |line, _| line.by_token(token).filter(|holder| line.remove(*holder)));
        let Some(holder) = holder else { return Ok(Release::NotHeld) };
        if let Some(notify) = store.lock().waiting.get(&holder) {
            notify.notify_one();
        }
        Ok(Release::Released)
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// Forgets a waiting call when it ends or is dropped.
struct Waiting<'a> {
    store: &'a MemoryStore,
    holder: HolderId,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.store.lock().waiting.remove(&self.holder);
    }
}
