//! Real etcd servers for the tests.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod server;
pub(crate) mod store;

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Backend, Capabilities, Result, Ticket, Wake};
use tokio::task::JoinHandle;

/// What the store must declare.
pub(crate) fn capabilities() -> Capabilities {
    let mut caps = Capabilities::of_lines();
    caps.raise = false;
    caps.max_batch = 128;
    caps.min_lease = Duration::from_secs(2);
    caps.lease_step = Duration::from_secs(1);
    caps.granularity = Duration::from_millis(50);
    caps
}

/// Waits as the client above does, but asks nobody.
pub(crate) fn waits(backend: &Arc<dyn Backend>, ticket: &Ticket) -> JoinHandle<Result<Wake>> {
    let (backend, ticket) = (Arc::clone(backend), ticket.clone());
    tokio::spawn(async move {
        loop {
            match backend.wait(&ticket).await {
                Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(20)).await,
                wake => return wake,
            }
        }
    })
}
