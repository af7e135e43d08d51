//! Drivers: how a URL becomes a backend. Plain data, so that a list of them documents itself.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::backend::Backend;
use crate::capabilities::Capabilities;
use crate::clock::Clock;
use crate::error::Result;
use crate::store::gate::MemberGate;
pub use crate::store::options::OptionSpec;
use crate::url::StoreUrl;

/// The future of [`Driver::open`].
pub type Opening = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>>> + Send>>;

/// One store family member: its schemes, its options and how to open it.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    /// The name people use: `redis`, `sqlite`.
    pub name: &'static str,
    /// The schemes of its URLs, the usual one first.
    pub schemes: &'static [&'static str],
    /// An example URL.
    pub example: &'static str,
    /// One line that says what it is.
    pub about: &'static str,
    /// What it can do with the options and the server's settings as they are by default; an opened backend says it
    /// exactly.
    pub capabilities: Capabilities,
    /// Its own options, beside those of [`crate::config::OPTIONS`].
    pub options: &'static [OptionSpec],
    /// Opens a backend: checks the URL before any I/O, then connects. The clock is the client's; a store that runs
    /// in this process keeps its leases on it.
    pub open: fn(StoreUrl, Arc<dyn Clock>) -> Opening,
    /// The gate of this store as a member of a quorum, where the URL asks for one; [`no_gate`](crate::quorum::no_gate)
    /// for a store that has none. No I/O.
    pub gate: fn(&StoreUrl) -> Result<MemberGate>,
}
