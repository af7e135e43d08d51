//! The suite against a server that somebody else runs: what `onelock check URL` does.
//!
//! Everything happens under names of its own (`check-…/`), each case under another, so that nobody else's locks are
//! touched. What needs a server in the suite's own hands (to kill, to count, to look into) is not checked, and says so.

mod scoped;

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::{Backend, Capabilities, Driver, Error, ErrorKind, HolderId, StoreUrl};

use crate::case::{self, Case, Need};
use crate::faults::{Link, Proxies};
use crate::harness::{Harness, Store, open_by};
use crate::record::Record;
use crate::runner::{self, Extent};
use crate::verdict::{Context as _, Verdict};
use scoped::Scoped;

/// Parts a scope from the URL behind it.
const MARK: char = ' ';

/// A server to check.
pub struct Target {
    url: String,
    driver: Driver,
    capabilities: Capabilities,
    drivers: Vec<Driver>,
}

impl Target {
    /// Connects to the store at `url` once, to see what it offers. Only its own names are touched.
    ///
    /// # Errors
    /// When no driver knows the URL, each of its clients has a store of its own, or the store cannot be reached.
    pub async fn connect(url: &str, drivers: Vec<Driver>) -> onelock_core::Result<Self> {
        let driver = driver_of(url, &drivers)?;
        let backend: Arc<dyn Backend> = Arc::new(Scoped::new(open_by(&driver, url).await?, scope()?));
        let capabilities = backend.capabilities();
        backend.close().await?;
        Ok(Self { url: url.to_owned(), driver, capabilities, drivers })
    }
}

const UNIT: Duration = Duration::from_millis(500);

fn driver_of(url: &str, drivers: &[Driver]) -> onelock_core::Result<Driver> {
    let parsed: StoreUrl = url.parse()?;
    let refused = |text: String| Err(Error::new(ErrorKind::InvalidConfig, text));
    match drivers.iter().find(|driver| driver.schemes.contains(&parsed.scheme.as_str())) {
        None => refused(format!("no store is called {}", parsed.scheme)),
        Some(driver) if driver.name == "memory" && parsed.hosts.is_empty() => {
            refused("each client of memory:// has a store of its own: check memory://NAME".to_owned())
        }
        Some(driver) => Ok(*driver),
    }
}

fn scope() -> onelock_core::Result<String> {
    Ok(format!("check-{}/", &HolderId::random()?.to_string()[..8]))
}

/// Runs as a client of a case when this process was started as one.
#[must_use]
pub fn serve_if_asked(drivers: Vec<Driver>) -> Option<ExitCode> {
    let url = String::new();
    let driver = drivers.first().copied()?;
    let capabilities = driver.capabilities;
    let harness: Arc<dyn Harness> = Arc::new(Target { url, driver, capabilities, drivers });
    crate::worker::run_if_asked(&harness).or_else(|| crate::trial::run_if_asked(&harness))
}

/// Runs the cases whose names hold any of `filters` (all where there are none), one after the other, and tells each
/// record.
///
/// # Errors
/// When a record cannot be written.
pub fn run(
    target: Target,
    filters: &[String],
    extent: Extent,
    file: Option<&Path>,
    mut told: impl FnMut(&Record),
) -> Verdict<Vec<Record>> {
    let harness: Arc<dyn Harness> = Arc::new(target);
    let wanted =
        |case: &&'static Case| filters.is_empty() || filters.iter().any(|text| case.name.contains(text));
    let mut records = Vec::new();
    for case in case::all().filter(wanted) {
        let (_, record) = runner::recorded(&harness, case, extent);
        if let Some(file) = file {
            record.append(file)?;
        }
        told(&record);
        records.push(record);
    }
    Ok(records)
}

#[async_trait]
impl Harness for Target {
    fn name(&self) -> &'static str {
        self.driver.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn unit(&self) -> Duration {
        UNIT.max(self.capabilities.min_lease)
    }

    fn lacks(&self, need: Need) -> Option<String> {
        let local = self.url.starts_with("memory:") || self.url.contains("memory://");
        let why = match need {
            Need::Processes if local => "the store lives in one process",
            Need::Network => return proxied(&self.url, 0).err(),
            Need::Epochs => "a larger token epoch would end all other clients of the store",
            Need::WholeNames => "part of every name is the check's own",
            Need::Restart | Need::Pause | Need::Leader => "the server is not ours to stop",
            Need::Requests | Need::Connections => "what others ask of the server would count",
            Need::Residue | Need::Foreign => "what others keep in the store is not ours to look at or change",
            Need::Password | Need::Tls | Need::Unreachable | Need::Altered => {
                "the suite shows it on servers of its own"
            }
            Need::WaiterLease => "whether a waiter's lease is a holder's, the store's own tests know",
            Need::Reconnect | Need::Thousands | Need::Line
                if !self.capabilities.resume && !self.capabilities.durable =>
            {
                "a lock lives and ends with a connection of its own"
            }
            Need::Processes | Need::Link | Need::Reconnect | Need::Thousands | Need::Line | Need::Can(_) => {
                return None;
            }
        };
        Some(why.to_owned())
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let (scope, url, drivers) = (scope()?, self.url.clone(), self.drivers.clone());
        Ok(Box::new(Fresh { scope, url, drivers, proxies: Proxies::default() }))
    }

    async fn open(&self, url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        open(url, &self.drivers).await
    }
}

async fn open(url: &str, drivers: &[Driver]) -> onelock_core::Result<Arc<dyn Backend>> {
    let (scope, url) = url.split_once(MARK).unwrap_or(("", url));
    let backend = open_by(&driver_of(url, drivers)?, url).await?;
    Ok(Arc::new(Scoped::new(backend, scope.to_owned())))
}

struct Fresh {
    scope: String,
    url: String,
    drivers: Vec<Driver>,
    proxies: Proxies,
}

#[async_trait]
impl Store for Fresh {
    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        Ok(open(&self.url()?, &self.drivers).await?)
    }

    fn url(&self) -> Verdict<String> {
        Ok(format!("{}{MARK}{}", self.scope, self.url))
    }

    async fn url_by(&self, link: &Arc<Link>) -> Verdict<String> {
        let way = self.proxies.way(address(&self.url).await?, link).await?;
        let by = proxied(&self.url, way.port()).map_err(crate::Stop::failed)?;
        Ok(format!("{}{MARK}{by}", self.scope))
    }

    async fn connect_by(&self, link: &Arc<Link>) -> Verdict<Arc<dyn Backend>> {
        match proxied(&self.url, 0) {
            Ok(_) => Ok(open(&self.url_by(link).await?, &self.drivers).await?),
            Err(_) => Ok(Arc::new(crate::faults::Gate::new(self.connect().await?, link))),
        }
    }
}

async fn address(url: &str) -> Verdict<SocketAddr> {
    let parsed: StoreUrl = url.parse()?;
    let (host, port) = parsed.single_host()?;
    let mut found = tokio::net::lookup_host((host, port.context("the URL's port")?)).await?;
    found.next().context("the server's address")
}

/// The URL with its server's place taken by `port` of this host; or why that cannot be.
fn proxied(url: &str, port: u16) -> Result<String, String> {
    let parsed: StoreUrl = url.parse().map_err(|error: Error| error.to_string())?;
    let scheme = parsed.scheme.as_str();
    if matches!(scheme, "rediss" | "etcds" | "zks") || url.contains("=verify") {
        return Err("TLS checks the name of the host: no proxy can be on the way".to_owned());
    }
    if scheme.contains('+') {
        return Err("the servers tell each other's addresses, which would lead past a proxy".to_owned());
    }
    let (Some((_, Some(_))), 1) = (parsed.hosts.first(), parsed.hosts.len()) else {
        return Err("the URL must name one host with its port for a proxy on the way".to_owned());
    };
    let (head, rest) = url.split_once("://").unwrap_or((url, ""));
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let user = rest[..end].rfind('@').map_or("", |at| &rest[..=at]);
    let by = format!("{head}://{user}127.0.0.1:{port}{}", &rest[end..]);
    // Short, so that a case with lost replies does not take minutes.
    let more = if by.contains('?') { '&' } else { '?' };
    Ok(match by.contains("request_timeout") {
        true => by,
        false => format!("{by}{more}request_timeout=500ms"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_proxy_takes_the_place_of_the_host_alone() {
        let by = proxied("redis://u:p%40ss@db.example:6379/3?ttl=5s", 7).unwrap();
        assert_eq!(by, "redis://u:p%40ss@127.0.0.1:7/3?ttl=5s&request_timeout=500ms");
        assert_eq!(proxied("zk://h:1/a", 7).unwrap(), "zk://127.0.0.1:7/a?request_timeout=500ms");
        let far = ["redis://h", "redis+cluster://h:1", "etcd://a:1,b:1", "memory://", "sqlite:///a"];
        let named = ["rediss://h:1", "postgres://h:1?sslmode=verify-full", "mysql://h:1/d?tls=verify-full"];
        for no in far.into_iter().chain(named) {
            assert!(proxied(no, 7).is_err(), "{no}");
        }
    }
}
