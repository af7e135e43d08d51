//! Bells: where a lock changes hands quickly, who gives it back tells who waits right behind it, and nobody else; see
//! `3_bell.sql`. A notification wakes every listening session of the database, which is fine for who waits long.
//!
//! An entry with a bell keeps the connection that made it until it is given back, so a client has one at most, and only
//! while what it sees is quick. Everybody else waits for a notification, and so does who hears no bell for [`PATIENCE`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{HolderId, LockName, Mode};

use super::Shared;
use super::call::{Call, Value};
use super::pool::{Again, Lent};

/// How long somebody waits for a bell. Meanwhile the server cannot clear away what dies in its tables.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);

/// How often in a row nobody is ahead, or only the holder, until bells are of no use here.
const FEW: u32 = 16;

/// How many quick waits there are then before they are tried again.
const PAUSE: u32 = 64;

/// The bells of one client.
pub(super) struct Bells {
    state: Mutex<State>,
    /// Whether there are connections enough to keep one.
    enough: bool,
}

#[derive(Default)]
struct State {
    /// The lock that this client was last given within [`PATIENCE`].
    quick: Option<LockName>,
    /// How often in a row few were ahead.
    few: u32,
    /// How many quick waits there are to be before the next bell.
    pause: u32,
    kept: Option<Kept>,
}

/// The entry with a bell.
struct Kept {
    holder: HolderId,
    /// The connection that has the bell, unless it asks or waits.
    at_rest: Option<Rung>,
}

/// A bell and the connection that has it.
pub(super) struct Rung {
    pub(super) lent: Lent,
    pub(super) bell: i64,
}

impl Bells {
    pub(super) fn new(connections: u16) -> Self {
        Self { state: Mutex::default(), enough: connections > 2 }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry was told, so long after it had joined, that it holds.
    pub(super) fn waited(&self, name: &LockName, time: Duration) {
        let mut state = self.lock();
        if time >= PATIENCE {
            state.quick.take_if(|quick| quick == name);
        } else if state.pause > 0 {
            state.pause -= 1;
        } else if state.quick.as_ref() != Some(name) {
            (state.quick, state.few) = (Some(name.clone()), 0);
        }
    }

    /// Whether this new entry is to have a bell: it is the one then, until it [leaves](Self::leave).
    pub(super) fn wants(&self, name: &LockName, mode: Mode, holder: HolderId) -> bool {
        let mut state = self.lock();
        // Readers and permits may hold together with the one ahead, which a bell does not tell.
        let may = self.enough && mode == Mode::Exclusive && state.kept.is_none();
        let wants = may && state.quick.as_ref() == Some(name);
        if wants {
            state.kept = Some(Kept { holder, at_rest: None });
        }
        wants
    }

    /// Takes in what became of an entry.
    fn learn(&self, what: Joined) {
        let mut state = self.lock();
        match what {
            Joined::BehindFew if state.few == FEW => (state.quick, state.pause) = (None, PAUSE),
            Joined::BehindFew => state.few += 1,
            Joined::BehindOthers => state.few = 0,
            Joined::Slow => state.quick = None,
            Joined::Failed => (state.quick, state.pause) = (None, PAUSE),
        }
    }

    /// Keeps a bell and its connection; given back where the entry has left meanwhile.
    fn keep(&self, holder: HolderId, rung: Rung) -> Option<Rung> {
        match &mut self.lock().kept {
            Some(kept) if kept.holder == holder => {
                kept.at_rest = Some(rung);
                None
            }
            _ => Some(rung),
        }
    }

    /// It leaves, or is not to have a bell any more: the bell, if it holds.
    pub(super) fn leave(&self, holder: HolderId) -> Option<Rung> {
        self.lock().kept.take_if(|kept| kept.holder == holder)?.at_rest
    }

    /// Gives the connection back; nobody has a bell from here on.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        (state.quick, state.kept) = (None, None);
    }

    /// The bell of the entry that has one, if it is one of these.
    pub(super) fn leave_any(&self, holders: &[HolderId]) -> Option<Rung> {
        let among = |kept: &mut Kept| kept.at_rest.is_some() && holders.contains(&kept.holder);
        self.lock().kept.take_if(among)?.at_rest
    }
}

/// A new entry that is to have a bell, until it is known what becomes of it.
pub(super) struct Joining {
    shared: Arc<Shared>,
    holder: HolderId,
    known: bool,
}

/// What has become of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Joined {
    /// Nobody was ahead, or only the holder: it holds, or is told by a notification.
    BehindFew,
    /// A bell said that it holds, or nobody had the one ahead.
    BehindOthers,
    /// It waits, and the bell ahead was not rung for too long.
    Slow,
    /// The request failed: a server may end what takes so long.
    Failed,
}

impl Joining {
    /// If it is to have one.
    pub(super) fn new(shared: &Arc<Shared>, name: &LockName, mode: Mode, holder: HolderId) -> Option<Self> {
        let wants = shared.inbox.hears() && shared.bells.wants(name, mode, holder);
        wants.then(|| Self { shared: Arc::clone(shared), holder, known: false })
    }

    /// How long the server is to wait for the bell ahead, in milliseconds.
    /// Meanwhile its place is not renewed.
    pub(super) fn patience(&self, lease: Duration) -> i32 {
        let patience = PATIENCE.min(self.shared.pool.request_timeout() / 4).min(lease / 4);
        i32::try_from(patience.as_millis()).unwrap_or(1).max(1)
    }

    /// What became of it, and its bell, which it keeps until it leaves.
    pub(super) fn joined(mut self, what: Joined, rung: Option<Rung>) {
        self.shared.bells.learn(what);
        if let Some(rung) = rung {
            self.known = true;
            if let Some(rung) = self.shared.bells.keep(self.holder, rung) {
                rung.silence(&self.shared);
            }
        }
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        if !self.known {
            self.shared.bells.leave(self.holder);
        }
    }
}

impl Rung {
    /// Gives the bell and the connection back, in the background.
    pub(super) fn silence(self, shared: &Arc<Shared>) {
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            let call = Call::new(&shared.sql.silence, vec![Value::Big(self.bell)]);
            // A connection that fails is closed, and its bell with it.
            let _ = shared.pool.fetch_by(Some(self.lent), Again::No, &call, |_| Ok(())).await;
        });
    }
}
