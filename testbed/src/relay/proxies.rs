//! The proxies on the ways to one store.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Link, Proxy};
use crate::verdict::Verdict;

/// The proxies on the ways to one store: each lasts as long as the store.
#[derive(Debug, Default)]
pub struct Proxies(Mutex<Vec<Proxy>>);

impl Proxies {
    /// Where clients find `target` by a way over `link`.
    ///
    /// # Errors
    /// When there is no port to listen on.
    pub async fn way(&self, target: impl Into<SocketAddr> + Send, link: &Arc<Link>) -> Verdict<SocketAddr> {
        let proxy = Proxy::start(target.into(), link).await?;
        let address = proxy.address();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(proxy);
        Ok(address)
    }
}
