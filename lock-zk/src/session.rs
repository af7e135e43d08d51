//! One session: calls that end, and since when the leader must know that the session lives.
//!
//! The server ends a session when it has not heard of it for its timeout. "The server" is the leader, and a follower
//! tells the leader only once in half a tick which sessions it has heard of: an answered request says nothing about
//! what the leader knows. What does: a request that was *answered at least a tick before* a write that the leader
//! committed. The follower reported it in between, and no other leader was elected before the write, or the write would
//! have failed; a leader elected later starts every session's time anew. So a lease counts from the last such request,
//! not from the write ([`Session::lasts`]), and the session sends one whenever none went out for a while.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result, Timestamp};
use tokio::runtime::Handle;
use zookeeper_client as zk;

use crate::error::{failed, is_answer};
use crate::group::Group;
use crate::pool::Target;

/// The most a session's timeout is spent on what cannot be counted on: see [`capacity`].
const BEATS: u32 = 10;

/// How many requests, one after the other, may go unanswered on a session that keeps nothing.
const UNANSWERED: u32 = 3;

/// How much of a session's timeout is a lease: without the time between two beats, the tick after which an answered
/// request counts, and a tick for everything on the way.
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
    group: Group,
}

/// When requests were sent that have been answered.
#[derive(Debug)]
struct Contact {
    /// The leader knows that the session was alive then.
    proven: Timestamp,
    /// When an answer came, and when its request was sent; a few in a tick.
    recent: VecDeque<(Timestamp, Timestamp)>,
    /// When the last answered request was sent.
    last: Timestamp,
    /// When the first request was sent of those that were given up since anything was answered.
    unanswered: Option<Timestamp>,
}

impl Contact {
    fn heard(&mut self, sent: Timestamp, now: Timestamp, tick: Duration) {
        self.last = self.last.max(sent);
        self.unanswered = None;
        if self.recent.back().is_none_or(|(answered, _)| now.saturating_since(*answered) >= tick / 4) {
            self.recent.push_back((now, sent));
        }
        // Enough for two ticks: what is older is settled.
        while self.recent.len() > 16 {
            self.settle(now, tick);
            if self.recent.len() > 16 {
                self.recent.pop_front();
            }
        }
    }

    /// What a write that is sent at `at`, once answered, proves.
    fn settle(&mut self, at: Timestamp, tick: Duration) -> Timestamp {
        while let Some((answered, sent)) = self.recent.front().copied() {
            if answered + tick > at {
                break;
            }
            self.proven = self.proven.max(sent);
            self.recent.pop_front();
        }
        self.proven
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
            // The leader itself begins a session, so its time begins no earlier than this.
            contact: Mutex::new(Contact {
                proven: sent,
                recent: VecDeque::new(),
                last: sent,
                unanswered: None,
            }),
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
            self.heard(sent);
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

    /// Notes that a request sent at `sent` has been answered now.
    pub(crate) fn heard(&self, sent: Timestamp) {
        self.contact().heard(sent, self.target.clock.now(), self.target.config.tick);
    }

    /// How long after `sent` the session lives at least, given that a write sent then was committed.
    pub(crate) fn lasts(&self, sent: Timestamp) -> Duration {
        let proven = self.contact().settle(sent, self.target.config.tick);
        (proven + self.timeout).saturating_since(sent)
    }

    /// Waits until a write that is sent now would prove enough for a lease of the session's whole capacity.
    pub(crate) async fn fresh(&self) -> Result<()> {
        let tick = self.target.config.tick;
        for _ in 0..3 {
            if self.lasts(self.target.clock.now()) >= self.capacity() {
                return Ok(());
            }
            // After a disconnection: say that we live, and give the follower time to pass it on.
            self.touch().await.map_err(|error| failed(error, "reach", &self.target.address))?;
            tokio::time::sleep(tick + tick / 4).await;
        }
        Err(Error::new(ErrorKind::Unavailable, "the contact to the server is too slow for the lease"))
    }

    /// A request that costs nothing and shows that the session lives.
    async fn touch(&self) -> Result<(), zk::Error> {
        let client = self.client()?;
        let path = if self.target.base.is_empty() { "/" } else { &self.target.base };
        self.ask(client.check_stat(path)).await.map(|_| ())
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

/// Sends a request whenever none was answered for a tenth of the timeout; lets an idle session go.
async fn beat(session: Weak<Session>, target: Arc<Target>, timeout: Duration) {
    let pause = (timeout / BEATS / 2).max(Duration::from_millis(1));
    let mut idle = Duration::ZERO;
    loop {
        tokio::time::sleep(pause).await;
        let Some(session) = session.upgrade() else { return };
        if session.is_over() {
            return;
        }
        let last = session.contact().last;
        if target.clock.now().saturating_since(last) >= pause {
            // What goes wrong here shows where it matters: the lease of the next renewal is counted from the last
            // contact.
            let _ = session.touch().await;
        }
        idle = if target.forget_idle(&session, idle) { idle + pause } else { Duration::ZERO };
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
    fn only_what_was_answered_a_tick_ago_is_proven() {
        let at = |ms| Timestamp::from_origin(MS(ms));
        let (recent, unanswered) = (VecDeque::new(), None);
        let mut contact = Contact { proven: at(0), recent, last: at(0), unanswered };
        contact.heard(at(1_000), at(1_010), MS(200));
        assert_eq!(contact.settle(at(1_100), MS(200)), at(0));
        assert_eq!(contact.settle(at(1_209), MS(200)), at(0));
        assert_eq!(contact.settle(at(1_210), MS(200)), at(1_000));
        for i in 0..1_000 {
            contact.heard(at(2_000 + i), at(2_001 + i), MS(200));
        }
        assert!(contact.recent.len() <= 16);
        let proven = contact.settle(at(3_000), MS(200));
        assert!(proven >= at(2_700) && proven <= at(2_800), "{proven:?}");
    }
}
