//! Observers, and what they are given.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::mode::Mode;
use crate::model::loss::LossReason;
use crate::name::LockName;
use crate::token::FencingToken;
use crate::toolkit::Given;

/// Is called with what happens to the locks of a client; see [`Settings::observer`](crate::Settings::observer).
///
/// ```
/// # use std::sync::{Arc, atomic::{AtomicU32, Ordering}};
/// # use onelock::{Event, Observer};
/// #[derive(Default)]
/// struct Losses(AtomicU32);
///
/// impl Observer for Losses {
///     fn on_event(&self, event: &Event<'_>) {
///         if let Event::Ended { reason, .. } = event && reason.is_loss() {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
/// let losses = Arc::new(Losses::default());
/// let settings = onelock::Settings::default().observer(losses.clone());
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Called in the task that the event happens in: it must not block. No lock of the library is held, but for one while an acquisition
    /// of an owner goes on: an acquire of the same owner and name must be neither polled nor dropped in here, or it waits for itself.
    /// A panic of it ends nothing but this call.
    fn on_event(&self, event: &Event<'_>);
}

/// What makes the label `group` of a name.
pub(crate) type Group = Given<Box<dyn Fn(&str) -> String + Send + Sync>>;

/// The lock that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subject {
    /// Its name.
    pub name: LockName,
    /// How it is shared.
    pub mode: Mode,
    /// The scheme of the store.
    pub store: Arc<str>,
    /// What [`Settings::metric_group`](crate::Settings::metric_group) made of the name.
    pub group: Arc<str>,
}

impl Subject {
    /// The label of its mode: `exclusive`, `shared` or `permit`.
    #[must_use]
    pub const fn mode_label(&self) -> &'static str {
        match self.mode {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            _ => "permit",
        }
    }
}

/// How an acquisition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It holds.
    Acquired,
    /// A try found it busy.
    Busy,
    /// The time was over.
    Timeout,
    /// Its entry was removed from the line.
    Evicted,
    /// Any other error.
    Failed,
    /// Its future was dropped.
    Cancelled,
}

impl Outcome {
    /// The label: `acquired`, `busy`, `timeout`, `evicted`, `failed` or `cancelled`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Busy => "busy",
            Self::Timeout => "timeout",
            Self::Evicted => "evicted",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An acquisition waits: others are ahead.
    Waiting(&'a Subject),
    /// An acquisition has ended.
    Acquired {
        /// The lock.
        of: &'a Subject,
        /// How it ended.
        outcome: Outcome,
        /// How long it took.
        wait: Duration,
        /// How many entries were ahead when it joined, where that is known.
        position: Option<usize>,
        /// Whether [`Event::Waiting`] came before.
        waited: bool,
    },
    /// A guard holds.
    Held {
        /// The lock.
        of: &'a Subject,
        /// Its token.
        token: FencingToken,
    },
    /// A hold has ended: given back, or lost.
    Ended {
        /// The lock.
        of: &'a Subject,
        /// Its token.
        token: FencingToken,
        /// How long it was held.
        held: Duration,
        /// Why it ended; see [`LossReason::is_loss`].
        reason: LossReason,
    },
    /// A renewal was answered.
    Renewed {
        /// The lock.
        of: &'a Subject,
        /// Its token, where it has one.
        token: Option<FencingToken>,
        /// The share of the lease that was left by the client's deadline, from 0 to 1.
        slack: f64,
        /// What failed; `None` when the lease is renewed.
        failure: Option<&'a Error>,
        /// Whether the store has the entry, as far as it has answered.
        held: bool,
    },
    /// Less than a third of a holder's lease is left and no renewal has come.
    LeaseLow {
        /// The lock.
        of: &'a Subject,
        /// Its token.
        token: FencingToken,
        /// What is left.
        left: Duration,
    },
    /// A grant came for a caller that had gone, and was given back.
    Unused(&'a Subject),
    /// This client has evicted an entry.
    Evicted {
        /// The lock.
        name: &'a LockName,
        /// The number of the entry, as the store has it.
        token: FencingToken,
    },
    /// The store has answered a request, or has failed to.
    Request {
        /// The scheme of the store.
        store: &'a str,
        /// The verb.
        verb: &'static str,
        /// What failed.
        failure: Option<&'a Error>,
        /// How long it took.
        took: Duration,
    },
    /// The store has answered after calls that it had not.
    Reconnected {
        /// The scheme of the store.
        store: &'a str,
    },
}
