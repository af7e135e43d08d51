//! The seam: what a store implements. Lock verbs, each one server-side step.
//!
//! Everything else — the acquire loop, deadlines, cancellation, backoff, the keeper, loss, re-entrancy — is written
//! once above this trait. A store owns one decision step, its clock, its order, its numbers and its wake-up.
//!
//! # Who polls
//!
//! A client drops no `acquire` and no `release` half way. Each may go on in another task than the one it began in: when its
//! caller goes away, and when its caller is woken and does not poll.
//!
//! # The contract
//!
//! Every clause names the cases of the conformance suite that prove it.
//!
//! - **C1** `acquire` is one atomic step: it joins the end of the line under a fresh number, or, with `queue` off,
//!   joins only if the entry holds at once and nobody waits, and leaves no trace otherwise.
//!   (cases: `basic_cycle`, `try_is_busy`, `unfair_never_passes_a_waiter`)
//! - **C2** Asking again with the same holder while its entry lives answers the same entry and the same number.
//!   (cases: `acquire_is_idempotent`, `late_acquire_revives_nothing`)
//! - **C3** The holders are the longest compatible prefix of the line; grants follow the order of the line.
//!   (cases: `fifo_order`, `mixed_modes`, `shared_admission`, `permit_admission`,
//!   `random_lines_follow_the_specification`, `churn_exclusive`, `churn_modes`)
//! - **C4** Numbers are positive and grow with every later entry of a name: across release, expiry, eviction,
//!   reconnect and, where the store is durable, restart. A request of a smaller epoch than one that has joined is refused
//!   with [`TokenEpoch::refused`]. (cases: `tokens_grow`, `tokens_grow_over_reconnect`, `tokens_grow_over_restart`,
//!   `smaller_epochs_are_refused`)
//! - **C5** A lease runs on the store's clock from the moment the store acts, lasts at least what the answer says
//!   plus the lock-delay, and is `lease` for a holder, `waiter_lease` for a waiter.
//!   (cases: `expiry_and_takeover`, `lock_delay`, `renewal_keeps_the_lock`, `promoted_waiter_keeps_its_waiter_lease`)
//! - **C6** Every verb first drops expired entries and promotes whoever now holds; nothing else has to happen for the
//!   line to move. (cases: `dead_waiter_leaves_the_line`, `crashed_holder`, `crashed_waiter`,
//!   `death_in_the_middle`)
//! - **C7** `renew` never shortens a lease, never brings back an entry that is gone (`NotHeld`), and answers each
//!   item by itself, in order. (cases: `owner_only`, `renew_answers_each`, `renew_never_shortens`,
//!   `late_renew_revives_nothing`)
//! - **C8** `release` acts only on the entry of exactly this holder; again, or on another's entry, it answers
//!   `NotHeld` and changes nothing. (cases: `owner_only`, `stale_handle`,
//!   `release_at_the_end_of_a_lease_hurts_nobody`)
//! - **C9** `wait` ends when asking again may help, or with the grant. A wake-up between joining and waiting is not
//!   lost; the future may be dropped and made anew at any time. (cases: `early_wake_is_kept`, `lost_wake_is_repaired`,
//!   `late_wake_is_discarded`, `dead_waiter_is_not_told_that_it_holds`)
//! - **C10** Where `push` is declared only the promoted are woken. (cases: `only_the_promoted_are_woken`, `idle_waiters_are_quiet`)
//! - **C11** `evict` removes the entry with exactly this number, holder or waiter, and keeps the counter.
//!   (cases: `evict_compares_the_token`)
//! - **C12** `inspect` shows holders and waiters in line order, with modes, numbers and notes, and never a holder id.
//!   (cases: `inspect_shows_the_line`)
//! - **C13** `list` gives each name with a living entry once, by prefix, in pages. (cases: `list_by_prefix`)
//! - **C14** Names are independent: no two names share a line, block each other or leave their namespace.
//!   (cases: `hostile_names`, `name_pairs_never_meet`)
//! - **C15** An empty line leaves nothing in the store beside counters, and those are bounded for any number of names.
//!   (cases: `no_residue`, `many_names_leave_bounded_storage`)
//! - **C16** Every verb but `wait` ends within a bounded time. An error that is not [`Error::is_unclear`] means that
//!   nothing happened. (cases: `unreachable_store`, `stopped_server`, `lost_reply_to_acquire_is_given_back`,
//!   `cancelled_acquires_leave_nothing`)
//! - **C17** `raise` lifts the counter only while the entry is ours; later entries get larger numbers.
//!   (cases: `raise_while_ours`)
//! - **C18** `capabilities` are true, and what is not declared is refused with `Unsupported`.
//!   (cases: `capabilities_are_as_declared`)
//! - **C19** What is not ours under our keys is answered with `Foreign` and left alone. (cases: `foreign_data`)
//! - **C20** After `close` every verb fails with `Closed`. (cases: `close_drains`, `closed_backend_refuses`)
//!
//! `acquire`, `renew` and `release` are never cut half way by the core once they were polled: an acquire whose caller
//! went away is finished in the background and given back. The other verbs may be dropped at any await.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::capabilities::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::holder::HolderId;
use crate::mode::Mode;
use crate::name::LockName;
use crate::snapshot::{Listing, Page, Snapshot};
use crate::token::{FencingToken, TokenEpoch};

/// A store of locks. No method has a default: a decorator that forgets one must not compile.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// Which store this is: for messages, so without secrets.
    fn info(&self) -> Info;

    /// What this store can do; the same for the whole life of the backend.
    fn capabilities(&self) -> Capabilities;

    /// Joins the line, or says why not (C1 to C6).
    async fn acquire(&self, request: &Request) -> Result<Standing>;

    /// Waits until asking again (by [`Backend::renew`]) may help, or for the grant itself (C9, C10).
    async fn wait(&self, ticket: &Ticket) -> Result<Wake>;

    /// Renews all that is due, holders and waiters, in as few requests as the store allows (C7). The answers are in
    /// the order of `due` and as many.
    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>>;

    /// Leaves the line (C8), and promotes whoever holds then.
    async fn release(&self, ticket: &Ticket) -> Result<Release>;

    /// Lifts the counter of the name to at least `token` while the entry is still ours (C17).
    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise>;

    /// The line of a name (C12). An unknown name has an empty line.
    async fn inspect(&self, name: &LockName) -> Result<Snapshot>;

    /// Names with living entries that start with `prefix` (C13).
    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing>;

    /// Removes the entry with this number, whoever has it (C11).
    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release>;

    /// Ends connections and tasks of this backend (C20).
    async fn close(&self) -> Result<()>;
}

/// Which store a backend talks to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// The scheme of its URL.
    pub scheme: String,
    /// Its address without user, password or secret options.
    pub address: String,
}

/// What an acquisition asks for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The name of the lock.
    pub name: LockName,
    /// Whose entry it will be: a fresh id for every acquisition.
    pub holder: HolderId,
    /// How it shares the lock.
    pub mode: Mode,
    /// The lease once it holds.
    pub lease: Duration,
    /// The lease while it waits.
    pub waiter_lease: Duration,
    /// The lock-delay: how much longer than the lease the store keeps the entry.
    pub delay: Duration,
    /// Whether it may wait in the line; if not it joins only to hold at once. A store without
    /// [`fifo`](Capabilities::fifo) has no line to wait in: it answers as if this were off, or keeps the request in a queue of
    /// its own for a bounded time before it does.
    pub queue: bool,
    /// The holder's label for people.
    pub note: Note,
    /// The client's token epoch; smaller than the largest that has joined here, the request is refused (C4).
    pub epoch: TokenEpoch,
}

impl Request {
    /// The ticket of the entry this request makes, before its number is known.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        Ticket {
            name: self.name.clone(),
            holder: self.holder,
            mode: self.mode,
            delay: self.delay,
            token: None,
        }
    }
}

/// The store's answer to [`Backend::acquire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The entry holds.
    Held(Grant),
    /// The entry stands in the line.
    Waiting(Place),
    /// There is no entry: it would not have held at once.
    Busy(Busy),
}

/// An entry that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its number.
    pub token: FencingToken,
    /// The lease the store gave, without the lock-delay: at least what was asked, or at least the waiter's where an
    /// [`acquire`](Backend::acquire) was answered only when the entry had waited. One renewal makes that a holder's.
    pub lease: Duration,
}

/// An entry that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number; it stays the same when it holds.
    pub token: FencingToken,
    /// The lease the store gave, without the lock-delay.
    pub lease: Duration,
    /// For the first waiter only: when the earliest lease ahead ends, from now. Nobody else needs to ask then.
    pub retry_after: Option<Duration>,
}

/// No entry was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// When the earliest lease ahead ends, from now, if the store knows.
    pub retry_after: Option<Duration>,
}

/// Names one entry for the verbs that follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The name of the lock.
    pub name: LockName,
    /// Whose entry it is.
    pub holder: HolderId,
    /// How it shares the lock.
    pub mode: Mode,
    /// The lock-delay.
    pub delay: Duration,
    /// Its number; `None` when the answer to the acquire never came.
    pub token: Option<FencingToken>,
}

/// One entry to renew.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// The entry.
    pub ticket: Ticket,
    /// The lease if it holds.
    pub lease: Duration,
    /// The lease if it still waits.
    pub waiter_lease: Duration,
}

/// The store's answer to one [`Renewal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The entry holds, with a renewed lease.
    Held(Grant),
    /// The entry waits, with a renewed lease.
    Waiting(Place),
    /// There is no such entry any more.
    NotHeld,
}

/// Why a [`Backend::wait`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Asking again may help.
    Ask,
    /// The store says that the entry with this number holds now. It moves no lease.
    Held(FencingToken),
}

/// The store's answer to a release or an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The entry was there and is gone.
    Released,
    /// There was no such entry.
    NotHeld,
}

/// The store's answer to [`Backend::raise`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raise {
    /// The entry is ours and the counter is at least the given token.
    Raised,
    /// There is no such entry; nothing changed.
    NotHeld,
}

/// A label for people: host, process, free text. At most 512 bytes, no control characters. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Note(Option<Arc<str>>);

impl Note {
    /// The longest note, in bytes of UTF-8.
    pub const MAX_BYTES: usize = 512;

    /// Checks `text`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] when it is too long or holds a control character.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        if text.len() > Self::MAX_BYTES {
            let text = format!("a note has at most {} bytes, this one has {}", Self::MAX_BYTES, text.len());
            return Err(Error::new(ErrorKind::InvalidName, text));
        }
        if text.chars().any(char::is_control) {
            return Err(Error::new(ErrorKind::InvalidName, "a note has no control characters"));
        }
        Ok(Self((!text.is_empty()).then(|| text.into())))
    }

    /// The text; empty for no note.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl TryFrom<String> for Note {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Self::new(text)
    }
}

impl From<Note> for String {
    fn from(note: Note) -> Self {
        note.as_str().to_owned()
    }
}
