//! The seam: what a store implements. Lock verbs, each one server-side step.
//!
//! Everything else — the acquire loop, deadlines, cancellation, backoff, the renewer, loss, re-entrancy — is written
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
//! - **C2** Asking again with the same holder while its entry lives answers the same entry and the same number. Where the
//!   server's own queue is the line, an entry has no number before it holds.
//!   (cases: `acquire_is_idempotent`, `late_acquire_revives_nothing`)
//! - **C3** The holders are the longest compatible prefix of the line; grants follow the order of the line.
//!   (cases: `fifo_order`, `mixed_modes`, `shared_admission`, `permit_admission`, `permit_weights`,
//!   `random_lines_follow_the_specification`, `churn_exclusive`, `churn_modes`)
//! - **C4** Numbers are positive and grow with every later entry of a name: across release, expiry, eviction,
//!   reconnect and, where the store is durable, restart. A request of a smaller epoch than one that has joined is refused
//!   with [`TokenEpoch::refused`](crate::TokenEpoch::refused). (cases: `tokens_grow`, `tokens_grow_over_reconnect`, `tokens_grow_over_restart`,
//!   `smaller_epochs_are_refused`)
//! - **C5** A lease runs on the store's clock from the moment the store acts, lasts at least what the answer says
//!   plus the lock-delay, and is `lease` for a holder, `waiter_lease` for a waiter.
//!   (cases: `expiry_and_takeover`, `lock_delay`, `renewal_keeps_the_lock`, `promoted_waiter_keeps_its_waiter_lease`)
//! - **C6** Every verb first drops expired entries and promotes the entries that now hold; nothing else has to happen for the
//!   line to move. (cases: `dead_waiter_leaves_the_line`, `crashed_holder`, `crashed_waiter`,
//!   `death_in_the_middle`)
//! - **C7** `renew` never shortens a lease, never brings back an entry that is gone (`NotHeld`), and answers each
//!   item by itself, in order. (cases: `owner_only`, `renew_answers_each`, `renew_never_shortens`,
//!   `late_renew_revives_nothing`)
//! - **C8** `release` acts only on the entry of exactly this holder; again, or on another's entry, it answers
//!   `NotHeld` and changes nothing. (cases: `owner_only`, `stale_handle`,
//!   `release_at_the_end_of_a_lease_hurts_nobody`)
//! - **C9** `wait` ends when asking again may help, or with the grant. A wake-up between joining and waiting is not
//!   lost; the future may be dropped and made anew at any time. Where a connection was lost it may fail once as `Unavailable`: the
//!   server that is reached next may lack the entry, as after a fail-over, and then the waiter joins again instead of being taken for evicted.
//!   (cases: `early_wake_is_kept`, `lost_wake_is_repaired`, `late_wake_is_discarded`, `dead_waiter_is_not_told_that_it_holds`)
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
//! - **C16** Every verb but `wait` ends within a bounded time. An error that is not [`Error::is_unclear`](crate::Error::is_unclear) means that
//!   nothing happened. (cases: `unreachable_store`, `stopped_server`, `lost_reply_to_acquire_is_given_back`,
//!   `messages_may_end_anywhere`, `cancelled_acquires_leave_nothing`)
//! - **C17** `raise` lifts the counter only while the entry is ours; later entries get larger numbers.
//!   (cases: `raise_while_ours`)
//! - **C18** `capabilities` are true, and what is not declared is refused with `Unsupported`, by [`Checked`](crate::store::Checked).
//!   (cases: `capabilities_are_as_declared`)
//! - **C19** What is not ours under our keys is answered with `Foreign` and left alone. (cases: `foreign_data`)
//! - **C20** After `close` every verb fails with `Closed`, by [`Checked`](crate::store::Checked). (cases: `close_drains`, `closed_backend_refuses`)
//!
//! `acquire`, `renew` and `release` are never cut half way by the core once they were polled: an acquire whose caller
//! went away is finished in the background and given back. The other verbs may be dropped at any await.

use std::fmt::Debug;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::capabilities::Capabilities;
use crate::error::Result;
use crate::name::LockName;
use crate::snapshot::{Listing, Page, Snapshot};
use crate::token::FencingToken;

pub use crate::model::request::{
    Busy, Grant, Note, Place, Raise, Release, Renewal, Renewed, Request, Standing, Ticket, Wake,
};

/// A store of locks. No method has a default: a decorator that forgets one must not compile.
///
/// What every store answers in the same way ([`Checked`](crate::store::Checked): closed, undeclared, the verb and address of
/// errors) need not be written again: constructors and drivers give the store behind it.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// Which store this is: for messages, so without secrets.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// # use onelock_core::{Backend, HolderId, LockName, Mode, Note, Renewal, Request, Standing, Ticket};
    /// # let backend = locks.backend();
    /// assert_eq!(backend.info().scheme, "memory");
    /// # Ok(())
    /// # }
    /// ```
    fn info(&self) -> Info;

    /// What this store can do; the same for the whole life of the backend.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// # use onelock_core::{Backend, HolderId, LockName, Mode, Note, Renewal, Request, Standing, Ticket};
    /// # let backend = locks.backend();
    /// assert!(backend.capabilities().fifo);
    /// # Ok(())
    /// # }
    /// ```
    fn capabilities(&self) -> Capabilities;

    /// Joins the line, or says why not (C1 to C6).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// # use onelock_core::{Backend, HolderId, LockName, Mode, Note, Renewal, Request, Standing, Ticket};
    /// # let backend = locks.backend();
    /// let lease = std::time::Duration::from_secs(5);
    /// let request = Request::new(LockName::new("orders")?, HolderId::random()?, Mode::Exclusive, lease);
    /// assert!(matches!(backend.acquire(&request).await?, Standing::Held(_)));
    /// # Ok(())
    /// # }
    /// ```
    async fn acquire(&self, request: &Request) -> Result<Standing>;

    /// Waits until asking again (by [`Backend::renew`]) may help, or for the grant itself (C9, C10).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// # use onelock_core::{Backend, HolderId, LockName, Mode, Note, Renewal, Request, Standing, Ticket};
    /// # let backend = locks.backend();
    /// # let request = Request::new(LockName::new("orders")?, HolderId::random()?, Mode::Exclusive, std::time::Duration::from_secs(5));
    /// # let Standing::Held(grant) = backend.acquire(&request).await? else { panic!("nobody else has it") };
    /// # let next = Request::new(LockName::new("orders")?, HolderId::random()?, Mode::Exclusive, std::time::Duration::from_secs(5));
    /// let Standing::Waiting(place) = backend.acquire(&next).await? else { panic!("it is held") };
    /// backend.release(&request.ticket()).await?;
    /// let wake = backend.wait(&next.ticket()).await?; // held, or to be asked for by `renew`
    /// # drop((wake, place, grant));
    /// # Ok(())
    /// # }
    /// ```
    async fn wait(&self, ticket: &Ticket) -> Result<Wake>;

    /// Renews all that is due, holders and waiters, in as few requests as the store allows (C7). The answers are in
    /// the order of `due` and as many. The core asks for at most [`Capabilities::max_batch`] at once.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// # use onelock_core::{Backend, HolderId, LockName, Mode, Note, Renewal, Request, Standing, Ticket};
    /// # let backend = locks.backend();
    /// # let request = Request::new(LockName::new("orders")?, HolderId::random()?, Mode::Exclusive, std::time::Duration::from_secs(5));
    /// # let Standing::Held(grant) = backend.acquire(&request).await? else { panic!("nobody else has it") };
    /// let due = Renewal::new(request.ticket(), request.lease, request.waiter_lease);
    /// let answers = backend.renew(&[due]).await;
    /// assert_eq!(answers.len(), 1);
    /// # drop(grant);
    /// # Ok(())
    /// # }
    /// ```
    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>>;

    /// Leaves the line (C8), and promotes the entries that hold then.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// # use onelock_core::{Backend, HolderId, LockName, Mode, Note, Renewal, Request, Standing, Ticket};
    /// # let backend = locks.backend();
    /// # let request = Request::new(LockName::new("orders")?, HolderId::random()?, Mode::Exclusive, std::time::Duration::from_secs(5));
    /// # let Standing::Held(grant) = backend.acquire(&request).await? else { panic!("nobody else has it") };
    /// assert_eq!(backend.release(&request.ticket()).await?, onelock_core::Release::Released);
    /// # drop(grant);
    /// # Ok(())
    /// # }
    /// ```
    async fn release(&self, ticket: &Ticket) -> Result<Release>;

    /// Lifts the counter of the name to at least `token` while the entry is still ours (C17).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// # use onelock_core::{Backend, HolderId, LockName, Mode, Note, Renewal, Request, Standing, Ticket};
    /// # let backend = locks.backend();
    /// # let request = Request::new(LockName::new("orders")?, HolderId::random()?, Mode::Exclusive, std::time::Duration::from_secs(5));
    /// # let Standing::Held(grant) = backend.acquire(&request).await? else { panic!("nobody else has it") };
    /// let more = onelock_core::FencingToken::new(grant.token.get() + 100)?;
    /// println!("{:?}", backend.raise(&request.ticket(), more).await?); // the next token is above it
    /// # Ok(())
    /// # }
    /// ```
    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise>;

    /// The line of a name (C12). An unknown name has an empty line.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// # use onelock_core::{Backend, HolderId, LockName, Mode, Note, Renewal, Request, Standing, Ticket};
    /// # let backend = locks.backend();
    /// let line = backend.inspect(&LockName::new("orders")?).await?;
    /// assert!(!line.is_held());
    /// # Ok(())
    /// # }
    /// ```
    async fn inspect(&self, name: &LockName) -> Result<Snapshot>;

    /// Names with living entries that start with `prefix` (C13).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// # use onelock_core::{Backend, HolderId, LockName, Mode, Note, Renewal, Request, Standing, Ticket};
    /// # let backend = locks.backend();
    /// let names = backend.list("orders/", &onelock_core::Page::first(100)?).await?.names;
    /// assert!(names.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing>;

    /// Removes the entry with this number, of any client (C11).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// # use onelock_core::{Backend, HolderId, LockName, Mode, Note, Renewal, Request, Standing, Ticket};
    /// # let backend = locks.backend();
    /// # let request = Request::new(LockName::new("orders")?, HolderId::random()?, Mode::Exclusive, std::time::Duration::from_secs(5));
    /// # let Standing::Held(grant) = backend.acquire(&request).await? else { panic!("nobody else has it") };
    /// let gone = backend.evict(&LockName::new("orders")?, grant.token).await?;
    /// assert_eq!(gone, onelock_core::Release::Released);
    /// # Ok(())
    /// # }
    /// ```
    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release>;

    /// Ends connections and tasks of this backend (C20).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # let locks = onelock::connect("memory://").await?;
    /// # use onelock_core::{Backend, HolderId, LockName, Mode, Note, Renewal, Request, Standing, Ticket};
    /// # let backend = locks.backend();
    /// backend.close().await?;
    /// assert!(backend.inspect(&LockName::new("orders")?).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    async fn close(&self) -> Result<()>;
}

/// Which store a backend talks to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Info {
    /// The scheme of its URL.
    pub scheme: String,
    /// Its address without user, password or secret options.
    pub address: String,
}

impl Info {
    /// The store of this scheme at this address.
    #[must_use]
    pub fn new(scheme: impl Into<String>, address: impl Into<String>) -> Self {
        Self { scheme: scheme.into(), address: address.into() }
    }
}
