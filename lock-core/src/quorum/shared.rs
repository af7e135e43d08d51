//! What the verbs of a quorum share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::gate::MemberGate;
use super::hold::QuorumHold;
use super::votes::Distinct;
use crate::backend::{Backend, Info};
use crate::capabilities::Capabilities;
use crate::client::background::Background;
use crate::error::{Error, ErrorKind};
use crate::holder::{HolderId, HolderMap};
use crate::toolkit::{Mutex, sweep};

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) members: Vec<Arc<dyn Backend>>,
    pub(super) distinct: Option<Distinct>,
    /// The gates of the members that have one.
    pub(super) gates: Vec<MemberGate>,
    /// The tasks that look after the gates; they end with it.
    pub(super) watching: Mutex<JoinSet<()>>,
    /// How long a member stays away whose gate was shut.
    pub(super) quarantine: Duration,
    pub(super) member_timeout: Duration,
    pub(super) capabilities: Capabilities,
    pub(super) info: Info,
    pub(super) runtime: Handle,
    pub(super) holds: Mutex<HolderMap<QuorumHold>>,
    /// How many calls are under way that may take an entry of this holder id away.
    pub(super) removing: Mutex<HolderMap<usize>>,
    /// Tasks under way that nobody waits for.
    pub(super) background: Background,
    /// By member, of releases that are repeated.
    pub(super) turns: Vec<Semaphore>,
    pub(super) closed: AtomicBool,
    /// The largest token epoch that was asked for: members are compared under it.
    pub(super) epoch: AtomicU16,
}

impl Shared {
    /// How many members are a majority.
    pub(super) fn majority(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// The error when fewer than a majority of the members answered; it shows what the others said. Where so many refuse
    /// that no retry helps, it is their refusal.
    pub(super) fn too_few(&self, answered: usize, errors: &[Error]) -> Error {
        let refusals: Vec<_> = errors.iter().filter(|error| !error.is_retryable()).collect();
        if refusals.len() > self.members.len() - self.majority() {
            return refusals[0].clone();
        }
        let mut text = format!("{answered} of {} members answered", self.members.len());
        for error in errors {
            text = format!("{text}; {error}");
        }
        Error::new(ErrorKind::Unavailable, text)
    }

    /// Keeps a hold. Those that have ended and that nobody released are forgotten when there are twice as many as last time.
    pub(super) fn keep(&self, owner: HolderId, hold: QuorumHold) {
        let mut holds = self.holds.lock();
        sweep(&mut holds, |hold| !hold.left().is_zero());
        holds.insert(owner, hold);
    }

    /// The lease that a majority gave at least.
    pub(super) fn lease(&self, mut leases: Vec<Duration>) -> Duration {
        leases.sort_unstable_by(|a, b| b.cmp(a));
        leases.get(self.majority() - 1).copied().unwrap_or_default()
    }
}
