//! Clients that take locks again and again while a test breaks the store under them.
//!
//! A failover test starts a [`Churn`] over clients of its own, breaks something, waits until [`Churn::goes_on`], and
//! ends it with [`Churn::stop`], which says what happened. [`Report::check`] then fails for two holders at once, for
//! tokens that go back, and for a kept guard that believes in a lock which the store does not know as its own.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onelock_core::client::Locks;
use onelock_core::client::guard::{Guard, LossReason};
use onelock_core::toolkit::Mutex;
use onelock_core::{Clock, Error, ErrorKind, Mode, Timestamp};
use tokio::task::JoinSet;

use crate::ctx::{PATIENCE, acquiring, answered, patient, within};
use crate::history::{self, KnownHold, nanos};
use crate::rng::Rng;
use crate::verdict::{Context as _, Stop, Verdict};
use crate::{ensure, fail};

/// How many locks the tasks fight for.
const LOCKS: u64 = 3;
/// How many tasks each client has.
const TASKS: u32 = 3;
/// The longest hold: short against a lease, so that a fault meets waiters, holders and calls under way alike.
const LONGEST_HOLD: Duration = Duration::from_millis(8);
/// The pause of a task whose store did not answer.
const PAUSE: Duration = Duration::from_millis(20);

/// Clients at work.
pub struct Churn {
    clients: Vec<Locks>,
    tasks: JoinSet<Verdict<Report>>,
    kept: Vec<(Locks, Guard)>,
    shared: Arc<ChurnState>,
}

struct ChurnState {
    /// What all names start with.
    prefix: String,
    clock: Arc<dyn Clock>,
    stop: AtomicBool,
    /// Full cycles so far, of each client.
    cycles: Vec<AtomicU64>,
    /// Why tasks gave up.
    stopped: Mutex<Vec<String>>,
}

/// What happened.
#[derive(Debug, Default)]
pub struct Report {
    /// Every hold that is known for certain.
    pub holds: Vec<KnownHold>,
    /// Holds that were lost before they were given back.
    pub lost: u64,
    /// Calls that failed, by the kind of their error.
    pub errors: HashMap<ErrorKind, u64>,
    /// Guards held across the fault: still held at the end.
    pub kept: usize,
    /// Guards held across the fault: lost, and known to be.
    pub kept_lost: usize,
    /// Kept guards that believe in a lock which the store does not show as theirs.
    pub deceived: Vec<String>,
}

impl Churn {
    /// Lets every client work: three tasks on three locks which all clients share, and one guard each, kept until the
    /// end. The names start with `prefix`; give the clients leases of a few seconds.
    ///
    /// # Errors
    /// When a kept guard cannot be had.
    pub async fn start(clients: Vec<Locks>, prefix: &str, seed: u64) -> Verdict<Self> {
        let clock = Arc::clone(clients.first().context("a churn needs a client")?.clock());
        let cycles = clients.iter().map(|_| AtomicU64::new(0)).collect();
        let (stop, stopped) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(ChurnState { prefix: prefix.to_owned(), clock, stop, cycles, stopped });
        let mut kept = Vec::new();
        for (i, locks) in clients.iter().enumerate() {
            let guard = locks.mutex(format!("{prefix}-kept-{i}"))?.acquire().await?;
            kept.push((locks.clone(), guard));
        }
        let mut tasks = JoinSet::new();
        for (client, locks) in clients.iter().enumerate() {
            for task in 0..TASKS {
                let who = u32::try_from(client)? * TASKS + task;
                let rng = Rng::new(seed ^ (u64::from(who) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let work = Work { locks: locks.clone(), client, who, shared: Arc::clone(&shared) };
                tasks.spawn(async move {
                    let seen = work.run(rng).await;
                    if let Err(stop) = &seen {
                        work.shared.stopped.lock().push(stop.to_string());
                    }
                    seen
                });
            }
        }
        Ok(Self { clients, tasks, kept, shared })
    }

    /// Waits until every client has made `cycles` full cycles more from now on: the store serves them (again).
    ///
    /// # Errors
    /// When a client does not within `limit`.
    pub async fn goes_on(&self, cycles: u64, limit: Duration) -> Verdict {
        let done = || self.shared.cycles.iter().map(|n| n.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let (before, end) = (done(), Instant::now() + limit);
        loop {
            let now = done();
            if before.iter().zip(&now).all(|(before, now)| now - before >= cycles) {
                return Ok(());
            }
            let stopped = self.shared.stopped.lock().clone();
            ensure!(stopped.is_empty(), "tasks gave up: {stopped:?}");
            if Instant::now() > end {
                let lines = self.lines().await;
                fail!("not every client goes on within {limit:?}: cycles {before:?}, now {now:?}; {lines}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What the store shows of the locks, for whoever has to find out why nothing moves.
    async fn lines(&self) -> String {
        let mut text = String::new();
        for number in 0..LOCKS {
            let name = format!("{}-{number}", self.shared.prefix);
            let Some(locks) = self.clients.first() else { break };
            let line = tokio::time::timeout(PATIENCE, locks.inspect(&name)).await;
            let owed: Vec<_> = self.clients.iter().map(Locks::pending).collect();
            let _ = write!(text, "{name}: {line:?}, owed {owed:?}; ");
        }
        text
    }

    /// Ends the work and says what happened. The store must be reachable.
    ///
    /// # Errors
    /// When a task met an error that no fault explains, or does not end.
    pub async fn stop(mut self) -> Verdict<Report> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut report = Report::default();
        while let Some(seen) = within(PATIENCE * 2, "the tasks end", self.tasks.join_next()).await? {
            let seen = seen??;
            report.holds.extend(seen.holds);
            report.lost += seen.lost;
            for (kind, count) in seen.errors {
                *report.errors.entry(kind).or_default() += count;
            }
        }
        for (locks, guard) in self.kept {
            judge(&mut report, &locks, guard).await?;
        }
        for locks in &self.clients {
            let end = Instant::now() + PATIENCE;
            while locks.pending() > 0 {
                ensure!(Instant::now() < end, "a client still owes {} releases", locks.pending());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(report)
    }
}

/// A guard kept across the fault is either lost, or the store shows its token as the holder's.
async fn judge(report: &mut Report, locks: &Locks, guard: Guard) -> Verdict {
    let end = Instant::now() + PATIENCE;
    loop {
        // The fault may not be quite over.
        let shown = answered(|| locks.inspect(guard.name().as_str())).await?;
        let Ok(token) = guard.token() else {
            // It is known at once why.
            within(PATIENCE, "a lost guard says so", guard.lost()).await?;
            report.kept_lost += 1;
            return Ok(());
        };
        if shown.holders.iter().any(|holder| holder.token == token) {
            report.kept += 1;
            guard.release().await?;
            return Ok(());
        }
        // What the store has forgotten, the next renewal finds out: until then the guard may believe.
        if Instant::now() > end {
            report.deceived.push(format!("{:?} with token {token}; the store shows {shown:?}", guard.name()));
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

struct Work {
    locks: Locks,
    client: usize,
    who: u32,
    shared: Arc<ChurnState>,
}

impl Work {
    async fn run(&self, mut rng: Rng) -> Verdict<Report> {
        let mut seen = Report::default();
        while !self.shared.stop.load(Ordering::Relaxed) {
            let number = u32::try_from(rng.below(LOCKS))?;
            let lock = self.locks.mutex(format!("{}-{number}", self.shared.prefix))?;
            let asked = self.shared.clock.now();
            match lock.acquire().await {
                Ok(guard) => {
                    let who = (number, self.who, Mode::Exclusive);
                    let held = hold(&self.shared.clock, guard, who, asked, rng.time(LONGEST_HOLD)).await;
                    self.held(&mut seen, held)?;
                }
                Err(error) => {
                    seen.failed(&error)?;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        Ok(seen)
    }

    fn held(&self, seen: &mut Report, (hold, released): (KnownHold, onelock_core::Result<()>)) -> Verdict {
        match released {
            Ok(()) => _ = self.shared.cycles[self.client].fetch_add(1, Ordering::Relaxed),
            Err(error) if error.kind() == ErrorKind::Lost => seen.lost += 1,
            Err(error) => seen.failed(&error)?,
        }
        if hold.token > 0 {
            seen.holds.push(hold);
        }
        Ok(())
    }
}

/// Holds for `time` and gives back, as this client of this lock: what is certain about the hold, and how the release
/// ended. A guard that was lost before its token was read has token 0, and proves nothing.
pub(crate) async fn hold(
    clock: &Arc<dyn Clock>,
    guard: Guard,
    (lock, client, mode): (u32, u32, Mode),
    asked: Timestamp,
    time: Duration,
) -> (KnownHold, onelock_core::Result<()>) {
    let (from, token, deadline) = (clock.now(), guard.token(), guard.deadline());
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
    // Renewals may have moved the deadline; the last one known before the release counts.
    let until = clock.now().min(deadline.max(guard.deadline())).max(from);
    let released = guard.release().await;
    let token = token.map_or(0, onelock_core::FencingToken::get);
    let (asked, from, until) = (nanos(asked), nanos(from), nanos(until));
    (KnownHold { lock, client, mode, token, asked, from, until }, released)
}

impl Report {
    /// Counts what a fault explains; anything else ends the run.
    fn failed(&mut self, error: &Error) -> Verdict {
        // A waiter's lease may end early where the server's clock is stepped; `check` allows none.
        let explained = [ErrorKind::Unavailable, ErrorKind::Timeout, ErrorKind::Lost, ErrorKind::Evicted];
        ensure!(explained.contains(&error.kind()), "no fault explains this error: {error}");
        *self.errors.entry(error.kind()).or_default() += 1;
        Ok(())
    }

    /// Fails for two holders at once, tokens that repeat or go back, and deceived guards; for a store that promises to
    /// keep its locks through the fault.
    ///
    /// # Errors
    /// The first violation, as a readable timeline.
    pub fn check(&self) -> Verdict {
        if let Some(violation) = history::check(&self.holds) {
            return Err(Stop::failed(violation));
        }
        ensure!(self.deceived.is_empty(), "guards that believe too long: {:?}", self.deceived);
        let evicted = self.errors.contains_key(&ErrorKind::Evicted);
        ensure!(!evicted, "waiters were removed from the line: {:?}", self.errors);
        Ok(())
    }

    /// How many pairs of holds overlapped; for a store whose page says that a fault may do that.
    #[must_use]
    pub fn has_overlap(&self) -> bool {
        history::exclusion(&self.holds).is_some()
    }
}

/// A majority of the servers goes and comes back: who holds knows at its deadline, nobody gets anything meanwhile, and
/// afterwards the waiter gets the lock with a larger token. `holder` needs a lease of a few seconds, and the fault must last
/// for as long as it is on.
///
/// # Errors
/// When the store broke one of these promises.
pub async fn over_a_lost_majority(
    (holder, other): (&Locks, &Locks),
    lose: impl AsyncFnOnce() -> Verdict,
    regain: impl AsyncFnOnce() -> Verdict,
) -> Verdict {
    const NAME: &str = "without-a-majority";
    let guard = holder.mutex(NAME)?.acquire().await?;
    let before = guard.token()?;
    let waiter = acquiring(other.mutex(NAME)?.retry(patient()));
    let end = Instant::now() + PATIENCE;
    while holder.inspect(NAME).await?.waiters.is_empty() {
        ensure!(Instant::now() < end, "nobody waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    lose().await?;
    let reason = within(PATIENCE, "the holder hears that it has lost the lock", guard.lost()).await?;
    ensure!(reason == LossReason::Expired && !guard.is_held(), "lost as {reason:?}");
    let free = other.mutex("free-meanwhile")?.acquire_timeout(guard.ttl()).await;
    ensure!(!matches!(free, Ok(Some(_))), "a lock was given without a majority: {free:?}");
    ensure!(!waiter.is_finished(), "the waiter came through without a majority");
    regain().await?;
    let next = within(PATIENCE * 2, "the next one holds when the majority is back", waiter).await???;
    ensure!(next.token()? > before && !guard.is_held(), "token {} after {before}", next.token()?);
    next.release().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use onelock_core::{BootClock, MemoryBackend, MemoryStore, Settings};

    fn clients(n: usize) -> Vec<Locks> {
        let clock: Arc<dyn Clock> = Arc::new(BootClock);
        let store = MemoryStore::new(Arc::clone(&clock));
        let client = |_| {
            let backend = Arc::new(MemoryBackend::new(&store));
            let mut settings = Settings::default();
            settings.ttl = Duration::from_secs(5);
            Locks::builder(backend).clock(Arc::clone(&clock)).settings(settings).build().unwrap()
        };
        (0..n).map(client).collect()
    }

    #[tokio::test]
    async fn a_sound_store_gives_a_clean_report() {
        let churn = Churn::start(clients(2), "sound", 1).await.unwrap();
        churn.goes_on(20, PATIENCE).await.unwrap();
        let report = churn.stop().await.unwrap();
        report.check().unwrap();
        assert!(report.holds.len() >= 40 && report.kept == 2 && report.kept_lost == 0, "{report:?}");
    }

    #[tokio::test]
    async fn an_evicted_guard_is_counted_as_lost() {
        let clients = clients(2);
        let churn = Churn::start(clients.clone(), "evicted", 1).await.unwrap();
        let shown = clients[1].inspect("evicted-kept-0").await.unwrap();
        clients[1].evict("evicted-kept-0", shown.holders[0].token).await.unwrap();
        let report = churn.stop().await.unwrap();
        report.check().unwrap();
        assert_eq!((report.kept, report.kept_lost), (1, 1));
    }

    #[tokio::test]
    async fn two_stores_taken_for_one_are_found_out() {
        let both = [clients(1), clients(1)].concat();
        let churn = Churn::start(both, "split", 1).await.unwrap();
        churn.goes_on(50, PATIENCE).await.unwrap();
        let report = churn.stop().await.unwrap();
        assert!(report.has_overlap() && report.check().is_err());
    }
}
