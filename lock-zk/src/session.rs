//! One session: calls that end, and since when the leader must know that the session lives.
//!
//! The leader ends a session that it has not heard of for the session's timeout. A follower reports which sessions it has
//! heard of only when the leader asks, twice in a tick. So an answered request does not prove that the leader has heard
//! of the session. Nor does a committed write: a leader that was stopped for longer than the timeout commits the writes
//! that waited for it, and ends the session a moment later.
//!
//! A lease therefore counts from a *beat*, a `sync`, which only the leader answers. A beat is proven for a write when
//!
//! - another beat was sent at least a tick after its answer, and has been answered. If the leader ran in between, it has
//!   asked the followers since and knows of the session;
//! - the write was sent at least a quarter of a tick after that second answer, and was committed. If the leader was
//!   stopped in between, it has ended the session by then or has been told of it.
//!
//! A new leader starts the time of every session anew, so a write that it commits proves no less.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use onelock_core::{Error, ErrorKind, Result, Timestamp};
use tokio::runtime::Handle;
use zookeeper_client as zk;

use crate::error::{failed, is_answer};
use crate::group::Group;
use crate::pool::Target;

/// The part of a session's timeout that lies between two beats is a half of this: see [`capacity`].
const BEATS: u32 = 10;

/// The most bytes that the paths of a session's nodes have. At a session's end the server writes one record with all of
/// them, and no server reads a record of two megabytes back: it would never start again (ZOOKEEPER-4306).
const MOST_PATHS: usize = 400_000;

/// How many proofs are remembered: a write may be answered after later ones.
const PROOFS: usize = 64;

/// How many requests, one after the other, may go unanswered on a session that keeps nothing.
const UNANSWERED: u32 = 3;

/// How much of a session's timeout is a lease: without the time between three beats, the tick and a quarter after which
/// one counts, and the rest of two ticks for everything on the way.
pub(crate) fn capacity(timeout: Duration, tick: Duration) -> Duration {
    (timeout - timeout / BEATS).saturating_sub(tick * 2)
}

/// The timeout to ask for, so that a session has this capacity: in steps of at most an eighth, so that many different
/// leases share few sessions.
pub(crate) fn timeout_for(need: Duration, tick: Duration) -> Duration {
    let millis = (need + tick * 2).as_millis() * u128::from(BEATS) / u128::from(BEATS - 1) + 2;
    let step = ((millis.next_power_of_two() / 2) / 8).max(10);
    let millis = millis.div_ceil(step) * step;
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

/// A session and its connection.
pub(crate) struct Session {
    target: Arc<Target>,
    client: Mutex<Option<Arc<zk::Client>>>,
    state: zk::StateWatcher,
    id: i64,
    timeout: Duration,
    /// How long it may leave requests unanswered.
    patience: Duration,
    contact: Mutex<Contact>,
    /// How many bytes the paths of its nodes have, those that are to be made included.
    paths: AtomicUsize,
    group: Group,
}

/// When requests were sent that have been answered.
#[derive(Debug)]
struct Contact {
    /// In the order of both.
    proofs: VecDeque<Proof>,
    /// Beats that no later one has proven yet.
    beats: VecDeque<Beat>,
    /// When the first request was sent of those that were given up since anything was answered.
    unanswered: Option<Timestamp>,
}

/// A committed write that was sent at `from` or later proves that the leader knows that the session lived at `alive`.
#[derive(Clone, Copy, Debug)]
struct Proof {
    from: Timestamp,
    alive: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Beat {
    sent: Timestamp,
    answered: Timestamp,
}

impl Contact {
    /// The leader itself begins a session, so its time begins no earlier than when that was asked for.
    fn new(opened: Timestamp) -> Self {
        let proofs = VecDeque::from([Proof { from: opened, alive: opened }]);
        Self { proofs, beats: VecDeque::new(), unanswered: None }
    }

    fn beat(&mut self, beat: Beat, tick: Duration) {
        let mut alive = None;
        while let Some(before) = self.beats.front().filter(|before| before.answered + tick <= beat.sent) {
            alive = alive.max(Some(before.sent));
            self.beats.pop_front();
        }
        let newest = self.proofs.back().map(|proof| proof.alive);
        if let Some(alive) = alive.filter(|alive| Some(*alive) > newest) {
            self.proofs.push_back(Proof { from: beat.answered + tick / 4, alive });
            if self.proofs.len() > PROOFS {
                self.proofs.pop_front();
            }
        }
        // A few in a tick are enough.
        if self.beats.back().is_none_or(|last| last.answered + tick / 8 <= beat.answered) {
            self.beats.push_back(beat);
        }
    }

    /// What a write that was sent at `at` and committed proves.
    fn alive(&self, at: Timestamp) -> Option<Timestamp> {
        self.proofs.iter().rev().find(|proof| proof.from <= at).map(|proof| proof.alive)
    }
}

impl Session {
    /// Opens a session with at least this timeout, if the server gives so much; it may give more or less. Its tasks live on
    /// the runtime that this is called in. `keeps`: entries will live as long as it does.
    pub(crate) async fn open(target: &Arc<Target>, ask: Duration, keeps: bool) -> Result<Arc<Self>> {
        let sent = target.clock.now();
        let limit = target.config.connect_timeout;
        let connect = async {
            loop {
                match target.connect(ask).await {
                    // The driver gives up after the session's timeout, which may be a short one.
                    Err(zk::Error::Timeout) => {}
                    other => return other,
                }
            }
        };
        let client = match tokio::time::timeout(limit, connect).await {
            Ok(Ok(client)) => client,
            Ok(Err(zk::Error::NoHosts)) | Err(_) => {
                let limit = humantime::format_duration(limit);
                let text = format!("no server of {} gave a session within {limit}", target.address);
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            Ok(Err(error)) => return Err(failed(error, "open a session at", &target.address)),
        };
        let timeout = client.session_timeout();
        let session = Arc::new(Self {
            state: client.state_watcher(),
            id: client.session_id().0,
            timeout,
            patience: if keeps {
                timeout.min(ask)
            } else {
                timeout.min(target.config.request_timeout * UNANSWERED)
            },
            contact: Mutex::new(Contact::new(sent)),
            paths: AtomicUsize::new(0),
            group: Group::default(),
            client: Mutex::new(Some(Arc::new(client))),
            target: Arc::clone(target),
        });
        target.runtime.spawn(beat(Arc::downgrade(&session), Arc::clone(target), session.timeout));
        Ok(session)
    }

    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// Its writes that are under way.
    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// Where what it does in the background runs.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.target.runtime
    }

    /// What the server gave.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The longest lease, lock-delay included, that this session can carry.
    pub(crate) fn capacity(&self) -> Duration {
        capacity(self.timeout, self.target.config.tick)
    }

    /// Whether it is over, as far as this client knows.
    pub(crate) fn is_over(&self) -> bool {
        self.state.peek_state().is_terminated() || self.lock_client().is_none()
    }

    /// The driver's handle.
    pub(crate) fn client(&self) -> Result<Arc<zk::Client>, zk::Error> {
        self.lock_client().clone().ok_or(zk::Error::ClientClosed)
    }

    fn lock_client(&self) -> MutexGuard<'_, Option<Arc<zk::Client>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn contact(&self) -> MutexGuard<'_, Contact> {
        self.contact.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the answer to a request that has just been sent, but not for ever.
    pub(crate) async fn ask<T>(
        &self,
        call: impl Future<Output = Result<T, zk::Error>>,
    ) -> Result<T, zk::Error> {
        let sent = self.target.clock.now();
        let answer = match tokio::time::timeout(self.target.config.request_timeout, call).await {
            Ok(answer) => answer,
            Err(_) => Err(zk::Error::Timeout),
        };
        if answer.as_ref().map_or_else(is_answer, |_| true) {
            self.heard();
        } else if matches!(answer, Err(zk::Error::Timeout)) {
            self.unheard(sent);
        }
        answer
    }

    /// Notes that a request sent at `sent` was given up. A stream that is out of step, as after a length that was altered
    /// on the way, stays so while the driver takes every byte for a sign of life: a session that has left everything
    /// unanswered for as long as it lasts carries no lease any more, and makes way for a new one.
    fn unheard(&self, sent: Timestamp) {
        let first = *self.contact().unanswered.get_or_insert(sent);
        if self.target.clock.now().saturating_since(first) > self.patience {
            drop(self.lock_client().take());
        }
    }

    /// Notes that a request has been answered now.
    pub(crate) fn heard(&self) {
        self.contact().unanswered = None;
    }

    /// How long after `sent` the session lives at least, given that a write sent then was committed.
    pub(crate) fn lasts(&self, sent: Timestamp) -> Duration {
        let alive = self.contact().alive(sent);
        alive.map_or(Duration::ZERO, |alive| (alive + self.timeout).saturating_since(sent))
    }

    /// Waits until a write that is sent now would prove enough for a lease of the session's whole capacity.
    pub(crate) async fn fresh(&self) -> Result<()> {
        let tick = self.target.config.tick;
        for _ in 0..3 {
            if self.lasts(self.target.clock.now()) >= self.capacity() {
                return Ok(());
            }
            // After a disconnection, or a leader that was stopped: one beat, and one that proves it.
            for pause in [tick + tick / 8, tick * 3 / 8] {
                self.beat().await.map_err(|error| failed(error, "reach", &self.target.address))?;
                tokio::time::sleep(pause).await;
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the contact to the server is too slow for the lease"))
    }

    /// Asks the leader for a sign of life, which costs no right and no disk.
    async fn beat(&self) -> Result<(), zk::Error> {
        let client = self.client()?;
        let path = if self.target.base.is_empty() { "/" } else { &self.target.base };
        let sent = self.target.clock.now();
        self.ask(client.sync(path)).await?;
        let beat = Beat { sent, answered: self.target.clock.now() };
        self.contact().beat(beat, self.target.config.tick);
        Ok(())
    }

    /// Takes room for a node whose path has so many bytes; false when the session is full.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        let more = |paths: usize| Some(paths + bytes).filter(|paths| *paths <= MOST_PATHS);
        self.paths.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Counts a node whether there is room or not.
    pub(crate) fn add(&self, bytes: usize) {
        self.paths.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives room back.
    pub(crate) fn put_back(&self, bytes: usize) {
        self.paths.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Ends the session, and with it all its nodes. Gives up after the request timeout: the server does it then when
    /// the session's time is over.
    pub(crate) async fn close(&self) {
        let Some(client) = self.lock_client().take() else { return };
        drop(client);
        let mut state = self.state.clone();
        let over = async {
            while !state.peek_state().is_terminated() {
                state.changed().await;
            }
        };
        let _ = tokio::time::timeout(self.target.config.request_timeout, over).await;
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("timeout", &self.timeout)
            .field("state", &self.state.peek_state())
            .finish_non_exhaustive()
    }
}

/// Sends a beat twice in a tenth of the timeout; lets an idle session go.
async fn beat(session: Weak<Session>, target: Arc<Target>, timeout: Duration) {
    let pause = (timeout / BEATS / 2).max(Duration::from_millis(1));
    let mut idle = Duration::ZERO;
    loop {
        tokio::time::sleep(pause).await;
        let Some(session) = session.upgrade() else { return };
        if session.is_over() {
            return;
        }
        idle = if target.forget_idle(&session, idle) { idle + pause } else { Duration::ZERO };
        // On its own: the next one does not wait for the answer to this one. What goes wrong shows where it matters, in
        // the lease of the next renewal.
        target.runtime.spawn(async move { session.beat().await });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_session_carries_the_lease_it_was_asked_for() {
        for tick in [MS(200), MS(2_000)] {
            for need in [1, 10, 400, 1_000, 1_234, 4_000, 30_000, 120_000, 3_600_000] {
                let timeout = timeout_for(MS(need), tick);
                assert!(capacity(timeout, tick) >= MS(need), "{need} {timeout:?}");
                let least = (MS(need) + tick * 2).as_secs_f64() / 0.9;
                assert!(timeout.as_secs_f64() <= least * 1.13 + 0.02, "{need}: {timeout:?} for {least}");
            }
        }
    }

    #[test]
    fn few_classes_serve_all_leases() {
        let classes: std::collections::BTreeSet<_> =
            (1..=36_000).map(|i| timeout_for(MS(i * 100), MS(2_000))).collect();
        assert!(classes.len() <= 90, "{}", classes.len());
    }

    #[test]
    fn a_beat_counts_when_the_leader_has_answered_one_a_tick_later() {
        let at = |ms| Timestamp::from_origin(MS(ms));
        let beat = |sent, answered| Beat { sent: at(sent), answered: at(answered) };
        let mut contact = Contact::new(at(0));
        contact.beat(beat(1_000, 1_010), MS(200));
        contact.beat(beat(1_209, 1_220), MS(200));
        assert_eq!(contact.alive(at(1_999)), Some(at(0)), "sent too soon after the first");
        contact.beat(beat(1_240, 1_250), MS(200));
        assert_eq!(contact.alive(at(1_299)), Some(at(0)), "a write that was sent too soon");
        assert_eq!(contact.alive(at(1_300)), Some(at(1_000)));
        // The leader is stopped, and goes on at 5000.
        contact.beat(beat(1_500, 5_000), MS(200));
        contact.beat(beat(4_900, 5_000), MS(200));
        assert_eq!(contact.alive(at(4_999)), Some(at(1_000)), "a write that waited for the leader");
        assert!(contact.alive(at(5_049)) <= Some(at(1_000)));
        for i in 0..10_000 {
            contact.beat(beat(6_000 + i, 6_001 + i), MS(200));
        }
        assert!(contact.beats.len() <= 16 && contact.proofs.len() <= PROOFS);
        let alive = contact.alive(at(16_000)).unwrap();
        assert!(alive >= at(15_600) && alive <= at(15_750), "{alive:?}");
        assert_eq!(contact.alive(at(3_000)), None, "forgotten long ago");
    }
}
