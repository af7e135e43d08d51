//! Waiting: one channel per client, and who in this process waits for what comes through it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onelock_core::{FencingToken, HolderId, HolderMap, LockName, Wake};
use tokio::sync::Notify;

use super::call::Value;

/// The entries of this client that wait.
pub(super) struct Inbox {
    /// The channel through which the server notifies of promotions.
    pub(super) channel: String,
    slots: Mutex<HolderMap<Arc<Slot>>>,
    /// Whether a notification was seen to come through since the listener connected.
    listens: AtomicBool,
    /// Notified when `listens` or the slots change: for the task that polls.
    pub(super) changed: Notify,
    proofs: AtomicU64,
    /// Notified when listening was tried for the first time.
    pub(super) tried: Notify,
}

/// One entry that waits.
pub(super) struct Slot {
    pub(super) name: LockName,
    wake: Mutex<Option<Wake>>,
    notified: Notify,
    /// Whether the server has said that it waits: before that there is nothing to poll for.
    waits: AtomicBool,
}

impl Slot {
    /// Waits for what comes. A grant stays for the next wait; a call to ask is for one.
    pub(super) async fn wait(&self) -> Wake {
        loop {
            let notified = self.notified.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if let Some(wake) = self.take() {
                return wake;
            }
            notified.await;
        }
    }

    fn take(&self) -> Option<Wake> {
        let mut wake = self.wake.lock().unwrap_or_else(PoisonError::into_inner);
        match *wake {
            Some(Wake::Ask) => wake.take(),
            other => other,
        }
    }

    pub(super) fn notify(&self, new: Wake) {
        let mut wake = self.wake.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!((*wake, new), (Some(Wake::Held(_)), Wake::Ask)) {
            *wake = Some(new);
        }
        drop(wake);
        self.notified.notify_waiters();
    }
}

impl Inbox {
    pub(super) fn new(client: HolderId) -> Self {
        Self {
            channel: format!("onelock_{}", client.to_hex()),
            slots: Mutex::default(),
            listens: AtomicBool::new(false),
            changed: Notify::new(),
            proofs: AtomicU64::new(0),
            tried: Notify::new(),
        }
    }

    fn slots(&self) -> MutexGuard<'_, HolderMap<Arc<Slot>>> {
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
            notified: Notify::new(),
            waits: AtomicBool::new(false),
        });
        slots.insert(holder, slot.clone());
        (slot, false)
    }

    /// The entry waits, as far as is known.
    pub(super) fn waits(&self, slot: &Slot) {
        if !slot.waits.swap(true, Ordering::AcqRel) {
            self.changed.notify_one();
        }
    }

    /// The entry waits no more: it holds, or is gone.
    pub(super) fn settle(&self, holder: HolderId, wake: Wake) {
        let slot = self.slots().remove(&holder);
        if let Some(slot) = slot {
            slot.notify(wake);
        }
    }

    /// All that wait, for the poller.
    pub(super) fn waiting(&self) -> Vec<(HolderId, Arc<Slot>)> {
        let slots = self.slots();
        let waiting = slots.iter().filter(|(_, slot)| slot.waits.load(Ordering::Acquire));
        waiting.map(|(holder, slot)| (*holder, slot.clone())).collect()
    }

    /// Something may have been missed: everybody asks, those under way to the server included.
    pub(super) fn notify_all(&self) {
        let slots: Vec<_> = self.slots().values().cloned().collect();
        for slot in slots {
            slot.notify(Wake::Ask);
        }
    }

    /// Where the server is to notify of a promotion: nowhere while nobody listens.
    pub(super) fn address(&self) -> Value {
        Value::Text(if self.listens() { self.channel.clone() } else { String::new() })
    }

    pub(super) fn listens(&self) -> bool {
        self.listens.load(Ordering::Acquire)
    }

    pub(super) fn listens_no_more(&self) {
        self.listens.store(false, Ordering::Release);
        self.changed.notify_one();
    }

    /// A notification to oneself, by which the client learns that notifications come through.
    pub(super) fn proof(&self) -> String {
        format!("p{}", self.proofs.fetch_add(1, Ordering::Relaxed))
    }

    /// The number of the next proof.
    pub(super) fn next_proof(&self) -> u64 {
        self.proofs.load(Ordering::Relaxed)
    }

    /// Takes in a notification; whether it is the proof, of which `since` is the first that counts. What is not
    /// understood is not ours, and what comes through another channel neither: a session of a pooler still listens for the client
    /// that had it before.
    pub(super) fn deliver(&self, channel: &str, payload: &str, since: u64) -> bool {
        if channel != self.channel {
            return false;
        }
        if let Some(number) = payload.strip_prefix('p') {
            let proven = number.parse::<u64>().is_ok_and(|number| number >= since);
            if proven {
                self.listens.store(true, Ordering::Release);
            }
            return proven;
        }
        if let Some((holder, wake)) = read(payload) {
            self.notify(holder, wake);
        }
        false
    }

    /// Notifies an entry, if it waits.
    pub(super) fn notify(&self, holder: HolderId, wake: Wake) {
        let slot = self.slots().get(&holder).cloned();
        if let Some(slot) = slot {
            slot.notify(wake);
        }
    }
}

/// What a poll of the entry of `holder` says: nothing new, that it holds, or that its client must ask. A grant names its
/// holder, so that no altered byte makes one.
pub(super) fn seen(answer: Option<&str>, holder: HolderId) -> Option<Wake> {
    match answer {
        Some("w") => None,
        answer => match answer.and_then(read) {
            Some((whose, held)) if whose == holder => Some(held),
            _ => Some(Wake::Ask),
        },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_own_and_new_proof_counts() {
        let inbox = Inbox::new(HolderId::random().unwrap());
        let channel = inbox.channel.clone();
        let old = inbox.proof();
        let since = inbox.next_proof();
        let new = inbox.proof();
        assert!(!inbox.deliver("onelock_other", &new, since), "another client's");
        assert!(!inbox.deliver(&channel, &old, since), "of an earlier connection");
        assert!(!inbox.deliver(&channel, "p", since) && !inbox.deliver(&channel, "h00", since));
        assert!(!inbox.listens());
        assert!(inbox.deliver(&channel, &new, since) && inbox.listens());
    }

    #[test]
    fn a_grant_is_read_by_its_holder_only() {
        let (own, other) = (HolderId::random().unwrap(), HolderId::random().unwrap());
        let grant = |holder: HolderId| format!("h{}8", holder.to_hex());
        let held = Wake::Held(FencingToken::new(8).unwrap());
        assert_eq!(seen(Some(&grant(own)), own), Some(held));
        assert_eq!(seen(Some("w"), own), None);
        for odd in [None, Some("x"), Some("h"), Some("8"), Some(&*grant(other))] {
            assert_eq!(seen(odd, own), Some(Wake::Ask), "{odd:?}");
        }
    }

    #[test]
    fn a_grant_is_kept_for_the_next_wait() {
        let inbox = Inbox::new(HolderId::random().unwrap());
        let holder = HolderId::random().unwrap();
        let (slot, _) = inbox.slot(&LockName::new("n").unwrap(), holder);
        let channel = inbox.channel.clone();
        inbox.deliver(&channel, &format!("h{}7", holder.to_hex()), 0);
        inbox.notify_all();
        let token = FencingToken::new(7).unwrap();
        assert_eq!((slot.take(), slot.take()), (Some(Wake::Held(token)), Some(Wake::Held(token))));
    }
}
