//! Re-entrancy by an explicit owner: never by thread or task, which two branches of one `join!` share.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Client;
use super::acquire::{self, Progress, Terms};
use super::guard::{Guard, Hold};
use crate::error::{Error, ErrorKind, Result};
use crate::mode::Mode;
use crate::name::LockName;

/// Somebody who may enter a lock again that it holds already. Cheap to clone; clones are the same owner.
///
/// Entering again asks the store nothing and gives the same token. A second acquisition of a name joins the owner's
/// first one in flight, and takes over if that one is cancelled.
#[derive(Clone)]
pub struct Owner {
    inner: Arc<Inner>,
}

struct Inner {
    client: Weak<Client>,
    slots: Mutex<Slots>,
}

/// An owner's acquisition of one name.
#[derive(Default)]
struct Slot {
    /// Who may talk to the store for this name.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    asking: Option<Mode>,
    hold: Weak<Hold>,
}

enum Now {
    /// Held already: entered again.
    Entered(Guard),
    /// Not held: somebody has to ask.
    Free,
}

type Slots = HashMap<LockName, Arc<Slot>>;

impl Inner {
    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owner {
    pub(super) fn new(client: &Arc<Client>) -> Self {
        Self { inner: Arc::new(Inner { client: Arc::downgrade(client), slots: Mutex::default() }) }
    }

    pub(super) fn check(&self, client: &Arc<Client>) -> Result<()> {
        if self.inner.client.as_ptr() == Arc::as_ptr(client) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Misuse, "this owner belongs to another client"))
    }

    /// This owner's place for a name.
    pub(super) fn slot(&self, name: &LockName) -> Arc<SlotLease> {
        let slot = Arc::clone(self.inner.slots().entry(name.clone()).or_default());
        Arc::new(SlotLease { owner: Arc::downgrade(&self.inner), name: name.clone(), slot })
    }
}

impl SlotLease {
    pub(super) async fn acquire(
        self: &Arc<Self>,
        client: &Arc<Client>,
        terms: &Terms,
        progress: &Progress,
    ) -> Result<Guard> {
        let slot = &self.slot;
        if let Now::Entered(guard) = slot.now(terms)? {
            return Ok(guard);
        }
        if slot.lock().asking.is_some() {
            progress.others_ahead();
        }
        let _turn = slot.turn.lock().await;
        if let Now::Entered(guard) = slot.now(terms)? {
            return Ok(guard);
        }
        let asking = Asking::new(slot, terms.mode);
        let stake = acquire::until_held(client, terms, progress).await?;
        Ok(asking.done(Guard::new(stake, Some(Arc::clone(self)))))
    }

    pub(super) async fn try_acquire(
        self: &Arc<Self>,
        client: &Arc<Client>,
        terms: &Terms,
    ) -> Result<Option<Guard>> {
        let slot = &self.slot;
        if let Now::Entered(guard) = slot.now(terms)? {
            return Ok(Some(guard));
        }
        // The owner is asking already: whether it will hold is not known now.
        let Ok(_turn) = slot.turn.try_lock() else { return Ok(None) };
        if let Now::Entered(guard) = slot.now(terms)? {
            return Ok(Some(guard));
        }
        let asking = Asking::new(slot, terms.mode);
        let stake = acquire::once(client, terms).await?;
        Ok(stake.map(|stake| asking.done(Guard::new(stake, Some(Arc::clone(self))))))
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters again if held; refuses what would wait for itself.
    fn now(&self, terms: &Terms) -> Result<Now> {
        let (hold, asking) = {
            let state = self.lock();
            (state.hold.upgrade(), state.asking)
        };
        // A lost lock is not entered; the owner asks anew.
        let entered = hold.and_then(|hold| hold.enter().ok());
        let has = entered.as_ref().map(Guard::mode).or(asking);
        match has {
            Some(has) if !has.covers(terms.mode) => {
                let text = format!(
                    "the owner has `{}` in mode {has} and would wait for itself in mode {}",
                    terms.name, terms.mode
                );
                Err(Error::new(ErrorKind::WouldDeadlock, text))
            }
            _ => Ok(entered.map_or(Now::Free, Now::Entered)),
        }
    }
}

/// Marks the slot while the owner asks the store.
struct Asking<'a> {
    slot: &'a Slot,
}

impl<'a> Asking<'a> {
    fn new(slot: &'a Slot, mode: Mode) -> Self {
        slot.lock().asking = Some(mode);
        Self { slot }
    }

    fn done(self, guard: Guard) -> Guard {
        self.slot.lock().hold = Arc::downgrade(guard.hold());
        guard
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.slot.lock().asking = None;
    }
}

/// A use of a slot, by a lock or what it holds; the last one to go takes the slot out of the owner's map.
pub(super) struct SlotLease {
    owner: Weak<Inner>,
    name: LockName,
    slot: Arc<Slot>,
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        let Some(owner) = self.owner.upgrade() else { return };
        let mut slots = owner.slots();
        // The map's own and this one: nobody else can come by it while the map is locked.
        if Arc::strong_count(&self.slot) == 2 {
            slots.remove(&self.name);
        }
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").finish_non_exhaustive()
    }
}

impl fmt::Debug for SlotLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotLease").field("name", &self.name).finish_non_exhaustive()
    }
}
