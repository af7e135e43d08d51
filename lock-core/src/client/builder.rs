//! Making a client, from a backend or by URL.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::around::lazy::Lazy;
use crate::around::observer::Observers;
use crate::around::observer::requests::Observed;
use crate::backend::{Backend, Note};
use crate::capabilities::Capabilities;
use crate::client::background::Background;
use crate::client::schedule::Schedule;
use crate::client::tries::turns;
use crate::client::{Client, Locks, renewer, runtime};
use crate::clock::{BootClock, Clock};
use crate::config::Settings;
use crate::driver::{Context, Driver};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Margin;
use crate::store::greeting;
use crate::toolkit::Layered;
use crate::url::StoreUrl;

impl Locks {
    /// A client over any backend.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// use std::sync::Arc;
    /// use onelock::{BootClock, Locks, MemoryBackend, MemoryStore};
    ///
    /// let store = MemoryStore::new(Arc::new(BootClock));
    /// let locks = Locks::builder(Arc::new(MemoryBackend::new(&store))).build()?;
    /// assert_eq!(locks.info().scheme, "memory");
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(backend: Arc<dyn Backend>) -> Builder {
        Builder { backend, clock: Arc::new(BootClock), settings: Settings::default() }
    }

    /// A client of the store that `url` names, by the driver that serves its scheme. `defaults` is what the URL's
    /// options override.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for an unknown scheme or option, before any I/O; so for a setting that no store takes, or
    /// [`ErrorKind::InvalidLease`]; any error of opening the store.
    ///
    /// # Cancel safety
    /// Safe: a store that was half opened is closed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # use std::sync::Arc;
    /// # use onelock::{BootClock, Locks, Settings};
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
        // What no store takes is no reason to ask this one, which may be away.
        settings.clone().checked(&Capabilities::of_lines(), &url.scheme)?;
        let backend = match settings.lazy {
            true => Arc::new(Layered(Lazy::new(*driver, url, Context::new(Arc::clone(&clock)), false)?)),
            false => match driver.open(url.clone(), Context::new(Arc::clone(&clock))).await {
                Ok(backend) => backend,
                Err(error) => return Err(greeting::explained(error, &url, greeting::found).await),
            },
        };
        Self::builder(backend).clock(clock).settings(settings).build()
    }
}

/// Makes a [`Locks`] from a backend; see [`Locks::builder`].
#[derive(Debug)]
#[must_use]
pub struct Builder {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    settings: Settings,
}

impl Builder {
    /// The clock of deadlines; boot time unless set. A store inside this process must be on the same one.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// What every lock starts from.
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
        let observers = Observers::new(&settings, &info.scheme, &self.clock);
        let backend = match &observers {
            Some(observers) => Observed::over(self.backend, observers),
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
            schedule: Schedule::default(),
            background: Background::default(),
            turns: turns(),
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
