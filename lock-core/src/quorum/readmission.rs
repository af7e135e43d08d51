//! Members that do not keep every write: one that has restarted has no vote until it is known to be harmless again.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::Quorum;
use super::gate::GateView;
use super::shared::Shared;
use crate::error::{Error, ErrorKind, Result};

/// A member as [`Quorum::gates`] finds it.
#[derive(Debug)]
pub struct SeenGate {
    /// The member's address, without secrets.
    pub member: String,
    /// Its gate, `None` for a member that has none, or why it cannot be asked.
    pub gate: Result<Option<GateView>>,
}

impl Quorum {
    /// The gates of all members, in the members' order, asked one after the other.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`]. What a member says instead is in its [`SeenGate`].
    ///
    /// # Cancel safety
    /// Safe: nothing is changed.
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
    /// for seen in quorum.gates().await? {
    ///     println!("{}: {:?}", seen.member, seen.gate);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn gates(&self) -> Result<Vec<SeenGate>> {
        let shared = &self.store().shared;
        shared.open()?;
        let mut seen = Vec::new();
        for (nth, member) in shared.members.iter().enumerate() {
            seen.push(SeenGate { member: member.info().address, gate: shared.look(nth).await });
        }
        Ok(seen)
    }

    /// Opens every gate that is shut, by a person's word: at the first start of all members, or when too many have
    /// restarted at once for the others to vouch for them. Their counters are lifted to the largest number of all
    /// members, and to `floor` at least (0 for none). How many were opened.
    ///
    /// Call it only when nobody holds or asks for a lock of this quorum, and has not for the longest lease; and where
    /// numbers may be lost on a majority, with a floor above every token that was given, or with a larger `token_epoch`.
    ///
    /// # Errors
    /// When a member with a gate cannot be asked: all must be there.
    ///
    /// # Cancel safety
    /// Safe: gates opened by then stay open.
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
    /// assert_eq!(quorum.open_gates(0).await?, 0); // none of these has one
    /// # Ok(())
    /// # }
    /// ```
    pub async fn open_gates(&self, floor: i64) -> Result<usize> {
        let shared = &self.store().shared;
        shared.open()?;
        let mut views = Vec::new();
        for member in 0..shared.members.len() {
            views.push(shared.look(member).await?);
        }
        let highest = views.iter().flatten().map(|view| view.highest).max().unwrap_or_default().max(floor);
        let mut opened = 0;
        for (gate, view) in shared.gates.iter().zip(views) {
            if let (Some(gate), Some(view)) = (gate, view.filter(|view| !view.open)) {
                opened += usize::from(shared.in_time(gate.open(&view.incarnation, highest)).await?);
            }
        }
        Ok(opened)
    }
}

impl Shared {
    /// Refuses an entry that could outlive the quarantine, where members have gates.
    pub(super) fn check_entry(&self, lease: Duration, delay: Duration) -> Result<()> {
        let longest = longest_entry(self.quarantine);
        if self.gates.iter().all(Option::is_none) || lease.saturating_add(delay) <= longest {
            return Ok(());
        }
        let text =
            format!("lease and lock-delay are longer than the quarantine of the members allows: {longest:?}");
        Err(Error::new(ErrorKind::InvalidLease, text))
    }

    /// Looks after all gates, in tasks that end with the quorum.
    pub(super) fn watch_gates(self: &Arc<Self>) {
        for member in (0..self.gates.len()).filter(|member| self.gates[*member].is_some()) {
            self.watching.lock().spawn_on(watch(Arc::downgrade(self), member), &self.runtime);
        }
    }

    /// One look at a gate. It is opened once this client has seen its incarnation for the whole quarantine, so that no
    /// attempt or hold is left that counts on what the store has forgotten, and once the counters can be lifted over
    /// every token that a majority can have given. Whether it is open then.
    async fn repair(&self, member: usize, seen: &mut Option<(String, Instant)>) -> Result<bool> {
        let Some(gate) = &self.gates[member] else { return Ok(true) };
        let view = self.in_time(gate.look()).await?;
        if view.open {
            return Ok(true);
        }
        let since = match seen {
            Some((incarnation, since)) if *incarnation == view.incarnation => *since,
            // The time of the answer: it was in this incarnation by then.
            _ => seen.insert((view.incarnation.clone(), Instant::now())).1,
        };
        if since.elapsed() < self.quarantine {
            return Ok(false);
        }
        let Some(floor) = self.floor(member).await else { return Ok(false) };
        self.in_time(gate.open(&view.incarnation, floor)).await
    }

    /// The largest number of a majority of members, all other than this one and all with an open gate: one of them has
    /// every token that was ever given. `None` when fewer can be asked: then nobody but a person can know.
    async fn floor(&self, but: usize) -> Option<i64> {
        let mut numbers = Vec::new();
        for member in (0..self.members.len()).filter(|member| *member != but) {
            if let Ok(Some(view)) = self.look(member).await
                && view.open
            {
                numbers.push(view.highest);
            }
        }
        let enough = numbers.len() >= self.majority();
        numbers.into_iter().max().filter(|_| enough)
    }

    async fn look(&self, member: usize) -> Result<Option<GateView>> {
        let Some(gate) = &self.gates[member] else { return Ok(None) };
        self.in_time(gate.look()).await.map(Some)
    }

    async fn in_time<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        // A look connects first.
        let limit = self.member_timeout.max(Duration::from_secs(1));
        let late =
            |_| Err(Error::new(ErrorKind::Timeout, format!("the gate did not answer within {limit:?}")));
        timeout(limit, call).await.unwrap_or_else(late)
    }
}

/// Looks at one gate again and again: often while it is shut or cannot be asked, else every quarter of the quarantine, because a restart is
/// noticed by nobody's verb where nobody asks for a lock.
async fn watch(shared: Weak<Shared>, member: usize) {
    // Kept over looks that fail: the store is in one incarnation until it forgets the next time, seen or not.
    let mut seen: Option<(String, Instant)> = None;
    loop {
        let Some(quorum) = shared.upgrade() else { return };
        let open = quorum.repair(member, &mut seen).await.unwrap_or(false);
        let again = if open { quorum.quarantine / 4 } else { pause(quorum.quarantine) };
        // Nothing is kept for long: a quorum that is dropped needs no gates.
        drop(quorum);
        tokio::time::sleep(again).await;
    }
}

/// The longest time an entry may live where members have gates: less than the quarantine by as much as clocks may run apart.
pub(super) fn longest_entry(quarantine: Duration) -> Duration {
    quarantine / 10 * 9
}

fn pause(quarantine: Duration) -> Duration {
    (quarantine / 10).clamp(Duration::from_millis(10), Duration::from_secs(1))
}
