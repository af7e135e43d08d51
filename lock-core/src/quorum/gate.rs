//! The gate of a store that does not keep every write: a member of a quorum that has restarted has no vote while it is shut.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;

use crate::error::Result;
use crate::url::StoreUrl;

/// The gate of one member: shut by every start of the store, opened by [`Gate::open`] only.
///
/// What it guards is the store's own: while the gate is shut, the verbs that vote (`acquire`, `renew`, `raise`) do
/// nothing and fail with an [unsent](crate::Error::unsent)
/// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), decided *in the same step* as the verb.
/// A look before the verb would be too early: the store can restart in between.
#[async_trait]
pub trait Gate: Debug + Send + Sync + 'static {
    /// The gate and the counters, in one step.
    async fn look(&self) -> Result<GateView>;

    /// Lifts all counters, of names never used too, to at least `floor` and opens the gate, in one step, and only
    /// while the store is still in this incarnation. Whether it is. The high bits of `floor` are a token epoch, as those of a token.
    async fn open(&self, incarnation: &str, floor: i64) -> Result<bool>;
}

/// The gate of a member, if it has one.
pub type MemberGate = Option<Arc<dyn Gate>>;

/// What [`Gate::look`] sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateView {
    /// Another one each time that the store may have forgotten: after every start, and when it was emptied.
    pub incarnation: String,
    /// Whether the gate is open to this incarnation.
    pub open: bool,
    /// The largest number any counter has reached, with the largest token epoch that has joined in its high bits; 0 where there
    /// is none.
    pub highest: i64,
}

/// The gate that the URL of a member asks for, if it asks for one. No I/O.
pub type GateOf = fn(&StoreUrl) -> Result<MemberGate>;
