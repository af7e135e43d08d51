//! Waiting: one channel per client, and who in this process waits for what comes through it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::{FencingToken, HolderId, LockName, Wake};
use tokio::sync::Notify;

/// The entries of this client that wait.
pub(super) struct Inbox {
    /// The channel the server tells promotions through.
    pub(super) channel: String,
    slots: Mutex<HashMap<HolderId, Arc<Slot>>>,
    /// Whether a notification was seen to come through since the listener connected.
    heard: AtomicBool,
    /// Told when `heard` or the slots change: the poller's bell.
    pub(super) bell: Notify,
    proofs: AtomicU64,
    /// Told when listening was tried for the first time.
    pub(super) tried: Notify,
}

/// One entry that waits.
pub(super) struct Slot {
    pub(super) name: LockName,
    wake: Mutex<Option<Wake>>,
    rung: Notify,
    /// Whether the server has said that it waits: before that there is nothing to look for.
    waits: AtomicBool,
}

impl Slot {
    /// Waits for what comes. A grant stays for whoever waits next; a call to ask is for one.
    pub(super) async fn wait(&self) -> Wake {
        loop {
            let rung = self.rung.notified();
            tokio::pin!(rung);
            rung.as_mut().enable();
            if let Some(wake) = self.take() {
                return wake;
            }
            rung.await;
        }
    }

    fn take(&self) -> Option<Wake> {
        let mut wake = self.wake.lock().unwrap_or_else(PoisonError::into_inner);
        match *wake {
            Some(Wake::Ask) => wake.take(),
            other => other,
        }
    }

    pub(super) fn ring(&self, new: Wake) {
        let mut wake = self.wake.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!((*wake, new), (Some(Wake::Held(_)), Wake::Ask)) {
            *wake = Some(new);
        }
        drop(wake);
        self.rung.notify_waiters();
    }
}

impl Inbox {
    pub(super) fn new(client: HolderId) -> Self {
        Self {
            channel: format!("onelock_{}", client.to_hex()),
            slots: Mutex::default(),
            heard: AtomicBool::new(false),
            bell: Notify::new(),
            proofs: AtomicU64::new(0),
            tried: Notify::new(),
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<HolderId, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of an entry, and whether it was there.
    pub(super) fn slot(&self, name: &LockName, holder: HolderId) -> (Arc<Slot>, bool) {
        let mut slots = self.slots();
        if let Some(slot) = slots.get(&holder) {
            return (slot.clone(), true);
        }
        let slot = Arc::new(Slot {
            name: name.clone(),
            wake: Mutex::default(),
            rung: Notify::new(),
            waits: AtomicBool::new(false),
        });
        slots.insert(holder, slot.clone());
        (slot, false)
    }

    /// The entry waits, as far as is known.
    pub(super) fn waits(&self, slot: &Slot) {
        if !slot.waits.swap(true, Ordering::AcqRel) {
            self.bell.notify_one();
        }
    }

    /// The entry waits no more: it holds, or is gone.
    pub(super) fn settle(&self, holder: HolderId, wake: Wake) {
        let slot = self.slots().remove(&holder);
        if let Some(slot) = slot {
            slot.ring(wake);
        }
    }

    /// All that wait, for the poller.
    pub(super) fn waiting(&self) -> Vec<(HolderId, Arc<Slot>)> {
        let slots = self.slots();
        let waiting = slots.iter().filter(|(_, slot)| slot.waits.load(Ordering::Acquire));
        waiting.map(|(holder, slot)| (*holder, slot.clone())).collect()
    }

    /// Something may have been missed: everybody asks, those under way to the server included.
    pub(super) fn ring_all(&self) {
        let slots: Vec<_> = self.slots().values().cloned().collect();
        for slot in slots {
            slot.ring(Wake::Ask);
        }
    }

    pub(super) fn hears(&self) -> bool {
        self.heard.load(Ordering::Acquire)
    }

    pub(super) fn deaf(&self) {
        self.heard.store(false, Ordering::Release);
        self.bell.notify_one();
    }

    /// A notification to oneself, by which the client learns that notifications come through.
    pub(super) fn proof(&self) -> String {
        format!("p{}", self.proofs.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes in a notification; whether it is the proof. What is not understood is not ours.
    pub(super) fn deliver(&self, payload: &str) -> bool {
        if payload.starts_with('p') {
            self.heard.store(true, Ordering::Release);
            return true;
        }
        if let Some((holder, wake)) = read(payload) {
            let slot = self.slots().get(&holder).cloned();
            if let Some(slot) = slot {
                slot.ring(wake);
            }
        }
        false
    }
}

/// `h`, the holder and its number: it holds. `g` and the holder: it is gone.
fn read(payload: &str) -> Option<(HolderId, Wake)> {
    let (kind, rest) = payload.split_at_checked(1)?;
    let (holder, number) = rest.split_at_checked(32)?;
    let holder = HolderId::from_hex(holder)?;
    match kind {
        "h" => Some((holder, Wake::Held(FencingToken::new(number.parse().ok()?).ok()?))),
        "g" if number.is_empty() => Some((holder, Wake::Ask)),
        _ => None,
    }
}
