//! Any store through this library.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use onelock::driver::Context;
use onelock::{BootClock, Clock, Driver, Error, ErrorKind, Guard, Locks, Settings, StoreUrl, config};
use tempfile::TempDir;

use crate::data::{Kind, SubjectInfo};
use crate::subject::{Client, Counter, Failure, Held, Lock, LockSpec, Mode, Need, Subject};
use crate::tap::Tap;

/// How long a client that ends waits for what it still owes.
const CLOSE: Duration = Duration::from_secs(10);

/// Stores whose server can be reached through a tap, and the ports they are at when the URL says none. Those of several
/// servers tell their clients addresses, and TLS knows its server by name.
const PORTS: &[(&str, u16)] = &[
    ("redis", 6379),
    ("etcd", 2379),
    ("postgres", 5432),
    ("postgresql", 5432),
    ("mysql", 3306),
    ("mariadb", 3306),
    ("zk", 2181),
    ("zookeeper", 2181),
];

/// A store by URL. Each client is one as [`onelock::connect`] makes it; the clients of a `memory://` URL share one store.
pub struct Ours {
    info: SubjectInfo,
    url: StoreUrl,
    driver: Driver,
    /// What another process is told; `None` where the store is in this one.
    text: Option<String>,
    counter: Option<Counter>,
    /// What the store's file is in.
    _folder: Option<TempDir>,
}

impl Ours {
    /// The store at `url`, called `label` in the report, or by its scheme.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for what is wrong with the URL, without any I/O.
    pub fn new(label: Option<&str>, url: &str) -> onelock::Result<Self> {
        let text = url;
        let mut url: StoreUrl = url.parse()?;
        let driver =
            onelock::drivers().into_iter().find(|driver| driver.schemes.contains(&url.scheme.as_str()));
        let Some(driver) = driver else {
            let text = format!("this build has no store `{}`", url.scheme);
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        };
        url.check_options(&[config::OPTIONS, driver.options])?;
        Settings::default().merge_url(&mut url.clone())?;
        let store = label.map_or_else(|| url.scheme.clone(), ToOwned::to_owned);
        let info = SubjectInfo {
            id: store.clone(),
            store,
            kind: Kind::Ours,
            library: format!("onelock {}", env!("CARGO_PKG_VERSION")),
            server: None,
        };
        if url.scheme == "memory" && url.hosts.is_empty() {
            static STORES: AtomicU64 = AtomicU64::new(0);
            let number = STORES.fetch_add(1, Ordering::Relaxed);
            url.hosts.push((format!("bench-{}-{number}", std::process::id()), None));
        }
        let text = (url.scheme != "memory").then(|| text.to_owned());
        Ok(Self { info, url, driver, text, counter: None, _folder: None })
    }

    /// An SQLite file in a folder that lives as long as this.
    ///
    /// # Errors
    /// When there can be no such folder, or the store is not compiled in.
    pub fn temporary_sqlite() -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("onelock-bench-").tempdir()?;
        let file = folder.path().join("locks.db");
        let file = file.to_str().ok_or("the folder for temporary files is not UTF-8")?;
        let mut sqlite = Self::new(None, &format!("sqlite://{file}"))?;
        sqlite._folder = Some(folder);
        Ok(sqlite)
    }

    /// With the server's own count of requests, and its name and version.
    #[must_use]
    pub fn served_by(mut self, counter: Counter, server: impl Into<String>) -> Self {
        self.counter = Some(counter);
        self.info.server = Some(server.into());
        self
    }

    async fn open(&self, mut url: StoreUrl, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        let mut settings = Settings::default();
        settings.ttl = lease;
        let settings = settings.merge_url(&mut url)?;
        let clock: Arc<dyn Clock> = Arc::new(BootClock);
        let backend = self.driver.open(url, Context::new(Arc::clone(&clock))).await?;
        let locks = Locks::builder(backend).clock(clock).settings(settings).build()?;
        Ok(Arc::new(OurClient(locks)))
    }

    /// The one server behind the URL, if it is in the clear.
    async fn server(&self) -> Result<Option<SocketAddr>, Failure> {
        let scheme = self.url.scheme.trim_end_matches("+session");
        let port = PORTS.iter().find(|(known, _)| *known == scheme).map(|(_, port)| *port);
        let (Some(port), [(host, said)]) = (port, &self.url.hosts[..]) else { return Ok(None) };
        let found = tokio::net::lookup_host((host.as_str(), said.unwrap_or(port))).await?.next();
        Ok(Some(found.ok_or("the host's name has no address")?))
    }
}

#[async_trait]
impl Subject for Ours {
    fn info(&self) -> &SubjectInfo {
        &self.info
    }

    async fn connect(&self, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        self.open(self.url.clone(), lease).await
    }

    async fn connect_tapped(&self, lease: Duration) -> Result<Option<(Arc<dyn Client>, Tap)>, Failure> {
        let Some(server) = self.server().await? else { return Ok(None) };
        let tap = Tap::start(server).await?;
        let mut url = self.url.clone();
        url.hosts = vec![(tap.address().ip().to_string(), Some(tap.address().port()))];
        Ok(Some((self.open(url, lease).await?, tap)))
    }

    fn url(&self) -> Option<String> {
        self.text.clone()
    }

    fn lacks(&self, need: Need) -> Option<String> {
        let can = &self.driver.capabilities;
        let (has, what) = match need {
            Need::Ping => return Some("the library has no call that does nothing".into()),
            Need::Apart => (self.text.is_some(), "clients in other processes"),
            Need::Shared => (can.shared, "shared locks"),
            Need::Permits => (can.permits, "permits"),
            Need::Wait | Need::Try | Need::Reentry | Need::Unfair | Need::Renewal | Need::Crash => (true, ""),
        };
        (!has).then(|| format!("{} has no {what}", self.url.scheme))
    }

    fn counter(&self) -> Option<&Counter> {
        self.counter.as_ref()
    }
}

struct OurClient(Locks);

#[async_trait]
impl Client for OurClient {
    fn prepare(&self, ask: &LockSpec<'_>) -> Result<Arc<dyn Lock>, Failure> {
        let mode = match ask.mode {
            Mode::Exclusive => onelock::Mode::Exclusive,
            Mode::Shared => onelock::Mode::Shared,
            Mode::Permit(limit) => onelock::Mode::permit(limit)?,
        };
        let lock = self.0.lock(ask.name, mode)?;
        Ok(Arc::new(OurLock(if ask.fair { lock } else { lock.unfair() })))
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(self.0.close(CLOSE).await?)
    }
}

struct OurLock(onelock::Lock);

#[async_trait]
impl Lock for OurLock {
    async fn take(&self) -> Result<Box<dyn Held>, Failure> {
        Ok(Box::new(OurHeld(self.0.acquire().await?)))
    }

    async fn try_take(&self) -> Result<Option<Box<dyn Held>>, Failure> {
        Ok(self.0.try_acquire().await?.map(|guard| Box::new(OurHeld(guard)) as _))
    }
}

struct OurHeld(Guard);

#[async_trait]
impl Held for OurHeld {
    fn again(&self) -> Result<Box<dyn Held>, Failure> {
        Ok(Box::new(Self(self.0.reenter()?)))
    }

    async fn release(self: Box<Self>) -> Result<(), Failure> {
        Ok(self.0.release().await?)
    }

    fn abandon(self: Box<Self>) {
        // A guard gives back what it holds by a task on its client's runtime, and that runtime has ended.
        drop(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::LEASE;

    #[tokio::test]
    async fn clients_of_one_memory_store_contend() -> Result<(), Failure> {
        let subject = Ours::new(None, "memory://")?;
        let (one, two) = (subject.connect(LEASE).await?, subject.connect(LEASE).await?);
        let (one, two) = (one.prepare(&LockSpec::exclusive("n"))?, two.prepare(&LockSpec::exclusive("n"))?);
        let held = one.take().await?;
        assert!(two.try_take().await?.is_none());
        held.again()?.release().await?;
        held.release().await?;
        assert!(two.try_take().await?.is_some());
        let other = Ours::new(None, "memory://")?.connect(LEASE).await?;
        assert!(other.prepare(&LockSpec::exclusive("n"))?.try_take().await?.is_some(), "a store of its own");
        Ok(())
    }

    #[test]
    fn a_bad_url_is_refused_before_anything_happens() {
        for bad in ["nonsense", "riddle://h", "memory://?tll=1s", "memory://?ttl=soon"] {
            let kind = Ours::new(None, bad).err().map(|error| error.kind());
            assert_eq!(kind, Some(ErrorKind::InvalidConfig), "{bad}");
        }
        assert!(Ours::new(Some("mine"), "memory://x").is_ok_and(|ours| ours.info().store == "mine"));
    }
}
