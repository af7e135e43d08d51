//! One lock over several independent stores: held while a majority of them says so.
//!
//! [`Quorum`] is a [`Backend`] over other backends. Over Redis servers that do not replicate each other it is Redlock;
//! the members may as well be of different kinds. It outlives the loss of a minority, and pays for it: every verb goes
//! to all members at once, nobody waits in a line (two clients could head different members' lines and wait for each
//! other for ever), and there are no permits (two majorities can each admit the last one).
//!
//! # Holding
//!
//! An attempt asks every member under one fresh holder id and never asks a member twice. It holds when a majority
//! granted; the lease counts from before the first request was sent, less the client's margin, and the client checks
//! that after the last answer. An attempt that fails is given back on every member before the caller may try again, a
//! grant that comes late is given back when it comes.
//!
//! # Fencing
//!
//! A member numbers the entry in the same step in which it grants. The token is the largest number of the granting
//! members; before the attempt succeeds, the counters of the granting members that are behind are lifted to it
//! ([`Backend::raise`]), each only while the entry there is still this attempt's, until a majority of all members is at
//! the token. Any two majorities share a member, and on that member one attempt's stretch from grant to raise lies
//! before the other's: so tokens of successful attempts differ and grow, whatever the clocks do, as long as no member's
//! counter goes back. Raising a majority that did not grant, or without looking whether the entry is still there, is
//! wrong: a late request of a slow attempt then gets a number below the token of a holder that was faster.
//!
//! Readers that hold at the same time may share a number: their stretches on that member overlap. A writer's differs from
//! every other, and is above those of all holders before it.
//!
//! A quorum is fenced only when every member can `raise`; otherwise [`Capabilities::fencing`] is false.
//!
//! # What it cannot promise
//!
//! - A member that forgets its entries (a restart without a durable log) can let two hold, because it then has a vote for
//!   each. Where members do not keep every write, keep one that has crashed away for as long as the longest lease.
//! - A member that forgets its counter (no durable log, a flush, a replica promoted in its place, a restored backup) can make a
//!   token come twice. Let Redis members write with `appendfsync always`, or give them gates, or give a member that lost
//!   data a fresh start only after the other members' tokens have been carried over.
//! - Exclusion, as every lease, rests on clocks that run at about the same rate. A stepped clock of one member can end its
//!   entries early: then two may believe that they hold, and the tokens still tell which is later.
//! - Members are independent, and their set is the same for all clients. [`open`] compares them: two addresses of one store are
//!   refused. It does not see that two databases, or two prefixes, are on one server. [`Quorum::new`] trusts its caller.
//!
//! # Gates
//!
//! Members that do not keep every write can have a [`Gate`] (Redis: the option `gate=run_id`). A start of the store shuts
//! it, and a member whose gate is shut has no vote: it grants, renews and raises nothing. Every client of the quorum looks
//! at the gates all the time (every quarter of the quarantine), and opens one when both of these are true:
//!
//! - It has seen the gate shut in this incarnation for the whole *quarantine* (the option `quarantine`). By then every attempt
//!   and every hold that counts on what the member forgot has ended; so no entry may live longer than nine tenths of it,
//!   and longer leases are refused. Without the wait, the order of tokens breaks: the model shows it.
//! - A majority of *other* members, all with open gates, has answered its largest number. Whatever was given by a majority is
//!   known to one of them, so the counters of the member are lifted to the largest of these, in the step that opens the gate.
//!
//! So one member after the other may lose everything, a minority at a time, and tokens grow. Where fewer than a majority
//! of others have open gates (the first start of all, or when too many have restarted) nobody but a person can know what
//! was given: [`Quorum::open_gates`]. All clients must ask for the gates, and for the same quarantine.

mod acquire;
mod distinct;
mod fanout;
mod gate;
mod hold;
mod inspect;
mod member;
mod opening;
mod readmission;
mod renew;
mod shared;
mod votes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;

use crate::backend::{Backend, Info, Raise, Release, Renewal, Renewed, Request, Standing, Ticket, Wake};
use crate::capabilities::Capabilities;
use crate::client::background::Background;
use crate::client::runtime;
use crate::client::tries::turns;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::round_up;
use crate::name::LockName;
use crate::snapshot::{Listing, Page, Snapshot};
use crate::store::{Checked, undeclared};
use crate::token::FencingToken;
use crate::toolkit::Mutex;
pub use gate::{Gate, GateOf, GateView, MemberGate};
pub use opening::{CAPABILITIES, OPTIONS, open};
pub use readmission::SeenGate;
use shared::Shared;
use votes::Distinct;

/// The most members: more make every verb slower and nothing safer.
const MOST_MEMBERS: usize = 15;

/// Locks held by a majority of several stores. See the [module](self).
pub type Quorum = Checked<Members>;

/// The verbs of [`Quorum`].
#[derive(Debug)]
pub struct Members {
    shared: Arc<Shared>,
}

impl Quorum {
    /// How long a member may take to answer, unless [`Quorum::with_member_timeout`] says otherwise.
    pub const MEMBER_TIMEOUT: Duration = Duration::from_millis(200);

    /// How long a member stays away after its gate was shut, unless [`Quorum::with_gates`] says otherwise.
    pub const QUARANTINE: Duration = Duration::from_secs(60);

    /// A quorum over `members`, which must be different, independent stores: not replicas of each other.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] unless there are 2 to 15 members at different addresses;
    /// [`ErrorKind::Misuse`] outside a tokio runtime.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # use std::sync::Arc;
    /// # use onelock::{store::Backend, BootClock, Locks, MemoryBackend, MemoryStore, Quorum, Result};
    /// let member = |name| -> Result<Arc<dyn Backend>> {
    ///     Ok(Arc::new(MemoryBackend::new(&MemoryStore::named(name, Arc::new(BootClock))?)))
    /// };
    /// let quorum = Quorum::new(vec![member("a")?, member("b")?, member("c")?])?;
    /// let locks = Locks::builder(Arc::new(quorum)).build()?;
    /// locks.mutex("orders")?.acquire().await?.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(members: Vec<Arc<dyn Backend>>) -> Result<Self> {
        Self::with_member_timeout(members, Self::MEMBER_TIMEOUT)
    }

    /// The same with another time for each member's answer: long enough for a healthy member, short against the lease,
    /// because a dead member can cost an attempt this time.
    ///
    /// # Errors
    /// As [`Quorum::new`]; and [`ErrorKind::InvalidConfig`] when the time is not from 1 ms to 1 minute.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # use std::sync::Arc;
    /// # use onelock::{store::Backend, BootClock, MemoryBackend, MemoryStore, Quorum, Result};
    /// let member = |name| -> Result<Arc<dyn Backend>> {
    ///     Ok(Arc::new(MemoryBackend::new(&MemoryStore::named(name, Arc::new(BootClock))?)))
    /// };
    /// # use std::time::Duration;
    /// let members = vec![member("a")?, member("b")?, member("c")?];
    /// let quorum = Quorum::with_member_timeout(members, Duration::from_millis(500))?;
    /// # drop(quorum);
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_member_timeout(members: Vec<Arc<dyn Backend>>, member_timeout: Duration) -> Result<Self> {
        let members = members.into_iter().map(|member| (member, None)).collect();
        Self::with_gates(members, member_timeout, Self::QUARANTINE)
    }

    /// The same with a gate for each member that has one, and the time that a member stays away after its gate was
    /// shut: longer than the longest lease and lock-delay, which are limited to nine tenths of it.
    ///
    /// # Errors
    /// As [`Quorum::with_member_timeout`]; and [`ErrorKind::InvalidConfig`] when the quarantine is not from 100 ms to 1
    /// week.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock::Result<()> {
    /// # use std::sync::Arc;
    /// # use onelock::{store::Backend, BootClock, MemoryBackend, MemoryStore, Quorum, Result};
    /// let member = |name| -> Result<Arc<dyn Backend>> {
    ///     Ok(Arc::new(MemoryBackend::new(&MemoryStore::named(name, Arc::new(BootClock))?)))
    /// };
    /// # use std::time::Duration;
    /// // A gate is what a member has that may forget its locks at a restart; these have none.
    /// let members = vec![(member("a")?, None), (member("b")?, None), (member("c")?, None)];
    /// let quorum = Quorum::with_gates(members, Quorum::MEMBER_TIMEOUT, Duration::from_secs(120))?;
    /// # drop(quorum);
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_gates(
        members: Vec<(Arc<dyn Backend>, MemberGate)>,
        member_timeout: Duration,
        quarantine: Duration,
    ) -> Result<Self> {
        Self::of(members, member_timeout, quarantine, false)
    }

    /// The same; with `compare` a member has a vote only once it is shown to be a store of its own.
    fn of(
        members: Vec<(Arc<dyn Backend>, MemberGate)>,
        member_timeout: Duration,
        quarantine: Duration,
        compare: bool,
    ) -> Result<Self> {
        let (members, gates): (Vec<_>, Vec<_>) = members.into_iter().unzip();
        let infos: Vec<_> = members.iter().map(|member| member.info()).collect();
        check(&infos, member_timeout, quarantine)?;
        let runtime = runtime::current()?;
        let addresses: Vec<_> = infos.into_iter().map(|info| info.address).collect();
        let all: Vec<_> = members.iter().map(|member| member.capabilities()).collect();
        let mut capabilities = combined(&all);
        if gates.iter().any(Option::is_some) {
            capabilities.max_lease = capabilities.max_lease.min(readmission::longest_entry(quarantine));
        }
        let shared = Shared {
            capabilities,
            distinct: compare.then(|| Distinct::new(members.len())),
            turns: members.iter().map(|_| turns()).collect(),
            members,
            gates,
            watching: Mutex::default(),
            quarantine,
            member_timeout,
            info: Info::new("quorum", format!("quorum of {}", addresses.join(", "))),
            runtime,
            holds: Mutex::default(),
            removing: Mutex::default(),
            background: Background::default(),
            closed: AtomicBool::new(false),
            epoch: AtomicU16::new(0),
        };
        let shared = Arc::new(shared);
        shared.watch_gates();
        Ok(Self::over(Members { shared }))
    }
}

/// Refuses what can never be a quorum, reachable or not.
fn check(members: &[Info], member_timeout: Duration, quarantine: Duration) -> Result<()> {
    let bad = |text| Err(Error::new(ErrorKind::InvalidConfig, text));
    if !(2..=MOST_MEMBERS).contains(&members.len()) {
        return bad(format!("a quorum has 2 to {MOST_MEMBERS} members, not {}", members.len()));
    }
    if !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&member_timeout) {
        return bad("the time for a member's answer is from 1ms to 1m".to_owned());
    }
    if !(Duration::from_millis(100)..=Duration::from_secs(7 * 24 * 3600)).contains(&quarantine) {
        return bad("the quarantine is from 100ms to 1week".to_owned());
    }
    for (i, info) in members.iter().enumerate() {
        if members[..i].contains(info) {
            return bad(format!("{} is a member twice: one store has one vote", info.address));
        }
    }
    Ok(())
}

/// What all members can do together.
fn combined(all: &[Capabilities]) -> Capabilities {
    let every = |has: fn(&Capabilities) -> bool| all.iter().all(has);
    let fencing = every(|caps| caps.fencing && caps.raise);
    let max = |time: fn(&Capabilities) -> Duration| all.iter().map(time).max().unwrap_or_default();
    let lease_step = max(|caps| caps.lease_step);
    Capabilities::minimal()
        .shared(every(|caps| caps.shared))
        .fencing(fencing)
        .raise(fencing)
        .delay(every(|caps| caps.delay))
        .durable(every(|caps| caps.durable))
        .lease_step(lease_step)
        .min_lease(round_up(max(|caps| caps.min_lease), lease_step))
        .max_lease(all.iter().map(|caps| caps.max_lease).min().unwrap_or_default())
        .granularity(max(|caps| caps.granularity))
        .max_batch(all.iter().map(|caps| caps.max_batch).min().unwrap_or_default())
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Members {
    fn info(&self) -> Info {
        self.shared.info.clone()
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.shared.check_entry(request.lease, request.delay)?;
        self.shared.epoch.fetch_max(request.epoch.into(), Ordering::AcqRel);
        acquire::acquire(&self.shared, request).await
    }

    async fn wait(&self, _: &Ticket) -> Result<Wake> {
        undeclared()
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        renew::renew(&self.shared, due).await
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        renew::release(&self.shared, ticket).await
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        renew::raise(&self.shared, ticket, token).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        inspect::inspect(&self.shared, name).await
    }

    async fn list(&self, _: &str, _: &Page) -> Result<Listing> {
        undeclared()
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        inspect::evict(&self.shared, name, token).await
    }

    async fn close(&self) -> Result<()> {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.watching.lock().abort_all();
        // What is not given back by then ends with its lease.
        let _ = timeout(self.shared.member_timeout, self.shared.background.settled()).await;
        let mut worst = Ok(());
        for member in &self.shared.members {
            worst = worst.and(member.close().await);
        }
        worst
    }
}

#[cfg(test)]
mod tests;
