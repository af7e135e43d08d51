//! The client over a store: everything that is the same on all of them.
//!
//! | module | what it owns |
//! |---|---|
//! | [`lock`] | a configured lock and its three ways to acquire |
//! | `acquire` | the acquire loop, polled in place |
//! | `entry` | one acquisition's state: what holds, until when, why it was lost |
//! | `renewer` | the one task that renews |
//! | `cancel_safe` | a call to the store: never cut half way |
//! | `runtime` | the runtime the client lives on, and calls from outside of it |
//! | `background` | releases that the store has not confirmed, and calls that lost their caller |
//! | [`guard`] | what the user holds |
//! | [`owner`] | re-entrancy |

pub mod guard;
pub mod lock;
pub mod owner;
pub mod retry;
pub mod settings;

pub(crate) mod acquire;
pub(crate) mod background;
mod cancel_safe;
pub(crate) mod entry;
#[cfg(test)]
mod entry_tests;
pub(crate) mod renewer;
mod runtime;
mod sync;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::around::lazy;
use crate::around::observer::Observers;
use crate::around::observer::requests::Observed;
use crate::backend::{Backend, Info, Note, Release};
use crate::capabilities::Capabilities;
use crate::clock::{BootClock, Clock, sleep_until};
use crate::config::Settings;
use crate::driver::{Context, Driver};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Margin;
use crate::mode::Mode;
use crate::name::{LockName, check_prefix};
use crate::snapshot::{Listing, Page, Snapshot};
use crate::store::greeting;
use crate::token::FencingToken;
use crate::url::StoreUrl;

use background::Background;
use entry::Upkeep;
use lock::{Lock, RwLock};
use owner::Owner;
use renewer::Renewer;

/// A client of one store: makes locks, renews what is held, gives back what is dropped. Cheap to clone.
///
/// Make one per store and process and share it: all its locks use one connection and one renewer.
#[derive(Clone)]
pub struct Locks {
    pub(crate) client: Arc<Client>,
}

pub(crate) struct Client {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) info: Info,
    pub(crate) capabilities: Capabilities,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Settings,
    margin: Margin,
    note: Note,
    /// Captured once: what is dropped outside a runtime is finished here.
    pub(crate) runtime: Handle,
    pub(crate) renewer: Renewer,
    background: Background,
    pub(crate) closed: AtomicBool,
    /// `None` when nobody observes.
    pub(crate) observers: Option<Arc<Observers>>,
}

/// Makes a [`Locks`] from a backend; see [`Locks::builder`].
#[derive(Debug)]
pub struct Builder {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    settings: Settings,
}

impl Builder {
    /// The clock of deadlines; boot time unless set. A store inside this process must be on the same one.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// What every lock starts from.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Makes the client; starts its renewer on the current runtime. Its locks and guards may be used on any other, or
    /// outside of one: what talks to the store then runs on this one.
    ///
    /// # Errors
    /// [`ErrorKind::Misuse`] outside a Tokio runtime, or on one without timers; [`ErrorKind::InvalidLease`],
    /// [`ErrorKind::InvalidConfig`] or [`ErrorKind::Unsupported`] for settings this store cannot serve.
    pub fn build(self) -> Result<Locks> {
        let runtime = runtime::current()?;
        let (info, capabilities) = (self.backend.info(), self.backend.capabilities());
        let settings = self.settings.checked(&capabilities, &info.scheme)?;
        let note = settings.note.clone().unwrap_or_else(default_note);
        let observers = Observers::new(&settings, &info.scheme);
        let backend = match &observers {
            Some(observers) => Observed::over(self.backend, &self.clock, observers),
            None => self.backend,
        };
        let client = Arc::new(Client {
            margin: Margin::new(settings.margin, capabilities.granularity)?,
            backend,
            info,
            capabilities,
            clock: self.clock,
            settings,
            note,
            runtime,
            renewer: Renewer::default(),
            background: Background::default(),
            closed: AtomicBool::new(false),
            observers,
        });
        renewer::start(&client);
        Ok(Locks { client })
    }
}

/// Host and process, as far as they are known.
fn default_note() -> Note {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let host = if host.is_empty() { std::env::var("HOSTNAME").unwrap_or_default() } else { host.to_owned() };
    Note::new(format!("{host}:{}", std::process::id())).unwrap_or_default()
}

impl Locks {
    /// A client over any backend.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use std::sync::Arc;
    /// use onelock_core::{BootClock, Locks, MemoryBackend, MemoryStore};
    ///
    /// let store = MemoryStore::new(Arc::new(BootClock));
    /// let locks = Locks::builder(Arc::new(MemoryBackend::new(&store))).build()?;
    /// assert_eq!(locks.info().scheme, "memory");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn builder(backend: Arc<dyn Backend>) -> Builder {
        Builder { backend, clock: Arc::new(BootClock), settings: Settings::default() }
    }

    /// A client of the store that `url` names, by the driver that serves its scheme. `defaults` is what the URL's
    /// options override.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for an unknown scheme or option, before any I/O; whatever opening the store says.
    ///
    /// # Cancel safety
    /// Safe: a store that was half opened is closed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # use std::sync::Arc;
    /// # use onelock_core::{BootClock, Locks, Settings};
    /// // The drivers of this build; a store of one's own has one more.
    /// let drivers = onelock::drivers();
    /// let locks = Locks::open("memory://", &drivers, Settings::default(), Arc::new(BootClock)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn open(
        url: &str,
        drivers: &[Driver],
        defaults: Settings,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let mut url: StoreUrl = url.parse()?;
        let driver = drivers.iter().find(|d| d.schemes.contains(&url.scheme.as_str()));
        let Some(driver) = driver else {
            let known: Vec<_> = drivers.iter().flat_map(|d| d.schemes).copied().collect();
            let text = format!("there is no store `{}`; this build has: {}", url.scheme, known.join(", "));
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        };
        url.check_options(&[crate::config::OPTIONS, driver.options])?;
        let settings = defaults.merge_url(&mut url)?;
        let backend = match settings.lazy {
            true => lazy::backend(*driver, url, Context::new(Arc::clone(&clock)))?,
            false => match driver.open(url.clone(), Context::new(Arc::clone(&clock))).await {
                Ok(backend) => backend,
                Err(error) => return Err(greeting::explained(error, &url).await),
            },
        };
        Self::builder(backend).clock(clock).settings(settings).build()
    }

    /// An exclusive lock.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// assert!(locks.mutex("orders/42")?.try_acquire().await?.is_none());
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn mutex(&self, name: impl AsRef<str>) -> Result<Lock> {
        self.lock(name, Mode::Exclusive)
    }

    /// A lock that readers share.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`], or [`ErrorKind::Unsupported`] where the store has no shared entries.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let config = locks.rwlock("config")?;
    /// let (one, two) = (config.read().acquire().await?, config.read().acquire().await?);
    /// assert!(config.write().try_acquire().await?.is_none());
    /// # drop((one, two));
    /// # Ok(())
    /// # }
    /// ```
    pub fn rwlock(&self, name: impl AsRef<str>) -> Result<RwLock> {
        Ok(RwLock { read: self.lock(name.as_ref(), Mode::Shared)?, write: self.lock(name, Mode::Exclusive)? })
    }

    /// A lock that up to `permits` may hold at once. Where holders say different numbers the
    /// smallest counts, so the number can change while services are rolled out.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`], [`ErrorKind::InvalidConfig`] for no permits, or [`ErrorKind::Unsupported`] where the
    /// store has no permits.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let converter = locks.semaphore("converter", 2)?; // two at a time, in all processes together
    /// let (one, two) = (converter.acquire().await?, converter.acquire().await?);
    /// assert!(converter.try_acquire().await?.is_none());
    /// # drop((one, two));
    /// # Ok(())
    /// # }
    /// ```
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Result<Lock> {
        self.lock(name, Mode::permit(permits)?)
    }

    /// A lock of any mode.
    ///
    /// # Errors
    /// As the three above.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use onelock_core::Mode;
    /// let mode: Mode = "s".parse()?; // as configured: x, s, or p with a number
    /// let guard = locks.lock("orders", mode)?.acquire().await?;
    /// assert_eq!(guard.mode(), Mode::Shared);
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock(&self, name: impl AsRef<str>, mode: Mode) -> Result<Lock> {
        let name = LockName::new(name)?;
        self.client.capabilities.check_mode(mode, &self.client.info.scheme)?;
        Ok(Lock::new(Arc::clone(&self.client), name, mode))
    }

    /// A new owner for re-entrant acquisitions.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let owner = locks.owner();
    /// let lock = locks.mutex("orders/42")?.owner(&owner)?;
    /// let outer = lock.acquire().await?;
    /// let inner = lock.acquire().await?; // entered again: no request, the same token
    /// assert_eq!(outer.token()?, inner.token()?);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::new(&self.client)
    }

    /// Who holds and who waits.
    ///
    /// # Errors
    /// What the store says.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders/42")?.note("worker 7")?.acquire().await?;
    /// let line = locks.inspect("orders/42").await?;
    /// assert_eq!(line.holders[0].note.as_str(), "worker 7");
    /// assert_eq!(line.holders[0].token, guard.token()?);
    /// assert!(line.waiters.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Snapshot> {
        let name = LockName::new(name)?;
        self.client.open()?;
        let mut snapshot = self.client.ask(|backend| async move { backend.inspect(&name).await }).await?;
        for view in snapshot.holders.iter_mut().chain(&mut snapshot.waiters) {
            view.token = self.client.settings.token_epoch.shown(view.token);
        }
        Ok(snapshot)
    }

    /// The names in use that start with `prefix`, a page at a time.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`], [`ErrorKind::Unsupported`], or what the store says.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use onelock_core::Page;
    /// let _one = locks.mutex("orders/1")?.acquire().await?;
    /// let _two = locks.mutex("orders/2")?.acquire().await?;
    /// let _other = locks.mutex("users/1")?.acquire().await?;
    /// let listing = locks.list("orders/", &Page::first(100)?).await?;
    /// let names: Vec<_> = listing.names.iter().map(|listed| listed.name.as_str()).collect();
    /// assert_eq!(names, ["orders/1", "orders/2"]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        check_prefix(prefix)?;
        self.client.open()?;
        self.client.capabilities.require(self.client.capabilities.list, "list", &self.client.info.scheme)?;
        let (prefix, page) = (prefix.to_owned(), page.clone());
        self.client.ask(|backend| async move { backend.list(&prefix, &page).await }).await
    }

    /// Removes the entry with exactly this token, holder or waiter, of any client. A holder learns of it at its next
    /// renewal; a resource that checks tokens refuses it from the next holder's first write on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`], or what the store says.
    ///
    /// # Cancel safety
    /// The entry may or may not be gone.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use onelock_core::Release;
    /// let stuck = locks.mutex("nightly")?.acquire().await?;
    /// let seen = locks.inspect("nightly").await?.holders[0].token;
    /// assert_eq!(locks.evict("nightly", seen).await?, Release::Released);
    /// assert_eq!(locks.evict("nightly", seen).await?, Release::NotHeld); // it was that holder only
    /// # drop(stuck);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn evict(&self, name: impl AsRef<str>, token: FencingToken) -> Result<Release> {
        let name = LockName::new(name)?;
        self.client.open()?;
        let raw = self.client.settings.token_epoch.open(token);
        let evict = |backend: Arc<dyn Backend>| async move {
            // Whether the store's numbers carry the epoch is not known here, and no store has both numbers.
            match (backend.evict(&name, token).await?, raw) {
                (Release::NotHeld, Some(raw)) => backend.evict(&name, raw).await,
                (answer, _) => Ok(answer),
            }
        };
        self.client.ask(evict).await
    }

    /// Which store this is.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// assert_eq!(locks.info().scheme, "memory");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.client.info
    }

    /// What the store can do.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// assert!(locks.capabilities().fencing);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.client.capabilities
    }

    /// What every lock starts from, with times as the store gives them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// assert_eq!(locks.settings().ttl.as_secs(), 30);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.client.settings
    }

    /// The store itself.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let capabilities = locks.backend().capabilities();
    /// assert!(capabilities.fifo);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.client.backend
    }

    /// The clock of all deadlines.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// let guard = locks.mutex("orders")?.acquire().await?;
    /// let left = guard.deadline().saturating_since(locks.clock().now());
    /// assert!(left > std::time::Duration::ZERO);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.client.clock
    }

    /// How many acquires and background releases are under way.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// drop(locks.mutex("orders/42")?.acquire().await?);
    /// assert!(locks.pending() <= 1); // the release, until the store has confirmed it
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn pending(&self) -> usize {
        self.client.background.count()
    }

    /// Ends this client: refuses new acquisitions, tells every guard that it is lost (and gives its lock back, unless a
    /// lock-delay is set), waits up to `timeout` for the store to confirm all releases and for the connections to close.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] when something is still under way then: it goes on in the background, and what it does not
    /// reach is freed by its lease. What closing the store says.
    ///
    /// # Cancel safety
    /// The client stays closed; what is under way goes on in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use std::time::Duration;
    /// use onelock_core::LossReason;
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// locks.close(Duration::from_secs(5)).await?;
    /// assert_eq!(guard.loss(), Some(LossReason::Closed));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close(&self, timeout: Duration) -> Result<()> {
        let client = Arc::clone(&self.client);
        self.client.at_home(async move { client.close(timeout).await }).await
    }
}

impl Client {
    /// How this client keeps what it holds, unless a lock says otherwise.
    pub(crate) fn upkeep(&self) -> Upkeep {
        let Settings { auto_renew, max_hold, .. } = self.settings;
        Upkeep { margin: self.margin, auto_renew, max_hold, at_least: None }
    }

    pub(crate) fn open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "this client has been closed").at(&self.info.address));
        }
        Ok(())
    }

    pub(crate) async fn close(self: &Arc<Self>, timeout: Duration) -> Result<()> {
        let client = self;
        client.closed.store(true, Ordering::Release);
        renewer::close(client);
        let until = client.clock.now() + timeout;
        let late =
            |text: String| Error::new(ErrorKind::Timeout, text).during("close").at(&client.info.address);
        let drained = tokio::select! {
            biased;
            () = client.background.settled() => Ok(()),
            () = sleep_until(&client.clock, until) => {
                Err(late(format!("{} releases are not confirmed; their leases free them", client.background.count())))
            }
        };
        let backend = Arc::clone(&client.backend);
        let closing = client.runtime.spawn(async move { backend.close().await });
        let closed = tokio::select! {
            biased;
            closed = closing => closed.unwrap_or_else(|_| Err(late("the runtime of this client has ended".into()))),
            () = sleep_until(&client.clock, until) => Err(late("the connections are still closing".into())),
        };
        drained.and(closed)
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("store", &self.client.info).finish_non_exhaustive()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.renewer.wake();
    }
}
