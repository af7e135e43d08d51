//! Counts round trips between a client and a server, whatever they speak.

use std::net::SocketAddr;
use std::sync::Arc;

use onelock_testbed::relay::{Link, Proxy};

use crate::subject::Failure;

/// A relay on which nothing is wrong. What a client sends without waiting for an answer (a keep-alive, an acknowledgement)
/// may count as well, so the trips of a single operation are best taken as the median of many.
#[derive(Debug)]
pub struct Tap {
    link: Arc<Link>,
    proxy: Proxy,
}

impl Tap {
    /// Listens on a free port of the loopback, for connections to `server`.
    ///
    /// # Errors
    /// When there is no port to listen on.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn start(server: SocketAddr) -> Result<Self, Failure> {
        let link = Link::new();
        let proxy = Proxy::start(server, &link).await.map_err(|stop| stop.to_string())?;
        Ok(Self { link, proxy })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.proxy.address()
    }

    /// How many round trips were begun so far.
    #[must_use]
    pub fn trips(&self) -> u64 {
        self.link.turns.get()
    }
}
