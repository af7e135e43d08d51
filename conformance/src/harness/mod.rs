//! What a store tells the suite about itself.

pub mod file;
pub mod memory;
mod secure;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_core::driver::Context;
use onelock_core::{Backend, BootClock, Capabilities, Clock, Driver, Settings, StoreUrl};

use crate::case::Need;
use crate::faults::Link;
use crate::verdict::{Stop, Verdict};

pub use secure::{Certificates, Credentials, PASSWORD, Tls};

/// A kind of store, for the whole run.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// Its name; the cases are listed as `name::case`.
    fn name(&self) -> &'static str;

    /// What its backend must declare. Written by hand in the store's test file, so that a capability cannot vanish
    /// without somebody taking it out there too.
    fn capabilities(&self) -> Capabilities;

    /// The time unit of the cases: leases are a few of it. Long enough that a loaded machine keeps to it.
    fn unit(&self) -> Duration {
        Duration::from_millis(400)
    }

    /// Why the store does not serve `need`; `None` when it does.
    fn lacks(&self, need: Need) -> Option<String>;

    /// A store of its own for one case: nobody else uses it, nothing is in it.
    async fn start(&self) -> Verdict<Box<dyn Store>>;

    /// The same of several servers, of which [`Store::stop_leader`] stops the one that leads; for cases that need one.
    async fn start_group(&self) -> Verdict<Box<dyn Store>> {
        Err(Stop::NotApplicable("no server leads others".to_owned()))
    }

    /// A new client of the store at `url`, which may be in another process than the one that started the store.
    async fn open(&self, url: &str) -> onelock_core::Result<Arc<dyn Backend>>;

    /// The clock of the clients' deadlines.
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(BootClock)
    }

    /// How many requests a hand-over in a crowd may cost: joining, leaving, and one renewal that makes a waiter's lease a
    /// holder's, with one to spare.
    fn hand_over_cost(&self) -> u64 {
        4
    }

    /// How many requests a lease may cost that keep a thousand entries of as many names: three rounds, batched.
    fn upkeep_cost(&self) -> u64 {
        100
    }

    /// Whether the driver goes on with a connection whose two ends disagree about what was said: the next break of it,
    /// which is a matter of time on a real network, is then what brings the client back.
    fn keeps_altered_connections(&self) -> bool {
        false
    }

    /// How many cases may run at once unless the command line says otherwise. More than there are cores: most of the
    /// time they wait for leases.
    fn threads(&self) -> usize {
        4 * std::thread::available_parallelism().map_or(2, usize::from)
    }
}

/// The store of one case. What its harness does not lack must work; the rest keeps the default.
#[async_trait]
pub trait Store: Send + Sync {
    /// What opens [`Store::url`] and [`Store::url_by`]. A store without one has a [`Store::connect`] and a
    /// [`Store::connect_by`] of its own.
    fn driver(&self) -> Verdict<Driver> {
        Err(Stop::failed("the harness names no driver, and does not connect without it"))
    }

    /// A new client.
    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        Ok(open_by(&self.driver()?, &self.url()?).await?)
    }

    /// A new client of another namespace of the same server; `None` where there is but one.
    async fn connect_beside(&self) -> Verdict<Option<Arc<dyn Backend>>> {
        Ok(None)
    }

    /// Where clients in other processes find it.
    fn url(&self) -> Verdict<String> {
        Err(undone(Need::Processes))
    }

    /// How many requests of clients the store has served so far.
    async fn requests(&self) -> Verdict<u64> {
        Err(undone(Need::Requests))
    }

    /// How many connections clients have open now.
    async fn connections(&self) -> Verdict<u64> {
        Err(undone(Need::Connections))
    }

    /// Where clients in other processes find it by a way over `link`.
    async fn url_by(&self, link: &Arc<Link>) -> Verdict<String> {
        let _ = link;
        Err(undone(Need::Network))
    }

    /// A new client whose way to the store can be cut.
    async fn connect_by(&self, link: &Arc<Link>) -> Verdict<Arc<dyn Backend>> {
        Ok(open_by(&self.driver()?, &self.url_by(link).await?).await?)
    }

    /// Kills the server and starts it again on the same data and address.
    async fn restart(&self) -> Verdict {
        Err(undone(Need::Restart))
    }

    /// Stops the server where it is, or lets it go on.
    async fn pause(&self, stopped: bool) -> Verdict {
        let _ = stopped;
        Err(undone(Need::Pause))
    }

    /// Stops the server that leads the others where it is, or lets it go on. Whether the others replace it meanwhile is the
    /// store's affair.
    async fn stop_leader(&self, stopped: bool) -> Verdict {
        let _ = stopped;
        Err(undone(Need::Leader))
    }

    /// What is in the store beside its counters, for a message; empty when nothing is.
    async fn residue(&self) -> Verdict<Vec<String>> {
        Err(undone(Need::Residue))
    }

    /// How many counters the store keeps for ever.
    async fn counters(&self) -> Verdict<u64> {
        Err(undone(Need::Residue))
    }

    /// Puts something that is not ours where the line of `name` would be.
    async fn plant(&self, name: &str) -> Verdict {
        let _ = name;
        Err(undone(Need::Foreign))
    }

    /// Whether what [`Store::plant`] put there is there yet, unchanged.
    async fn planted(&self, name: &str) -> Verdict<bool> {
        let _ = name;
        Err(undone(Need::Foreign))
    }

    /// A URL of this kind where nobody listens.
    fn unreachable_url(&self) -> Verdict<String> {
        Err(undone(Need::Unreachable))
    }

    /// A store that asks for a password: a URL with the right one, a URL with a wrong one, and both passwords.
    async fn with_password(&self) -> Verdict<Credentials> {
        Err(undone(Need::Password))
    }

    /// A store behind TLS: a URL that trusts its certificate, and URLs that must be refused, each with what is wrong.
    async fn with_tls(&self) -> Verdict<Tls> {
        Err(undone(Need::Tls))
    }
}

/// Opens `url` by a driver as a client would: the options that all stores share are not the driver's.
///
/// # Errors
/// What reading the URL or opening the store says.
pub async fn open_by(driver: &Driver, url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
    let mut url: StoreUrl = url.parse()?;
    url.check_options(&[onelock_core::config::OPTIONS, driver.options])?;
    Settings::default().merge_url(&mut url)?;
    driver.open(url, Context::new(Arc::new(BootClock))).await
}

fn undone(need: Need) -> Stop {
    Stop::Failed(format!("the harness says that it has {need:?}, but does not"))
}
