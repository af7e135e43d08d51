//! Session locks: the server's own advisory locks, a connection for each lock that is held or waited for.
//!
//! They are fast because nothing is written down, and for the same reason they promise less than the lines of the other
//! stores; the crate's README says what. This part is the same for every server; a `Dialect` knows how to ask one.
//!
//! - The lock belongs to a session of the server. The server ends a session that is idle for longer than the lease, and
//!   renewals keep it from being so: that is the lease. It starts anew when the server has answered a request, so a client
//!   that counts from before it sent that request never believes for longer.
//! - The number is drawn in the request that takes the lock, after it was taken. The next holder draws later,
//!   from the same source, which never goes back: numbers of a name grow.
//! - Whatever goes wrong on a connection, it is closed, never used again: no session that may hold something is lent out.

mod acquire;
mod backend;
mod dialect;
mod entry;
mod inspect;
#[cfg(feature = "mysql")]
pub mod mysql;
mod names;
#[cfg(feature = "postgres")]
pub mod postgres;
mod release;
mod renew;
mod sessions;
mod wait;

use std::time::Duration;

use onelock_core::{Capabilities, OptionSpec, Result, StoreUrl};

use crate::hosts::bad;

/// What every kind of session lock can do; the rest is for the dialect to say.
///
/// A session that ends frees its lock at once (no delay), a key cannot be read back into a name (no list), and a lock ends with
/// the server's process and its client's connection. A session that is ended takes its connection with it: not for a client
/// that was late by a moment.
pub(crate) const CAPABILITIES: Capabilities = Capabilities::minimal()
    .shared(true)
    .fifo(true)
    .fencing(true)
    .push(true)
    .min_lease(Duration::from_millis(200));

/// The option that every kind of session lock has.
const CONNECTIONS: OptionSpec = OptionSpec::new(
    "connections",
    "32",
    "How many locks this client may hold or await at once; each has a connection of its own",
);

fn connections(url: &mut StoreUrl) -> Result<u16> {
    let connections = url.take("connections")?.unwrap_or(32);
    let good = (1..=10_000).contains(&connections);
    if good { Ok(connections) } else { Err(bad("connections is from 1 to 10000")) }
}
