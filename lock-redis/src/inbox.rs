//! The inbox: one channel per client, and a place for every waiter where its grant is kept until it looks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onelock_core::{Error, ErrorKind, FencingToken, HolderId, HolderMap, Result, Wake};
use tokio::sync::Notify;

/// The channel of one client and its waiters.
#[derive(Debug)]
pub(crate) struct Inbox {
    channel: String,
    /// Whether a pushed grant counts. Where replicas must have a grant it does not: whoever promoted may be a master that
    /// is cut off, where leases end that are renewed elsewhere. The waiter asks, and the answer waits for the replicas.
    grants: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    slots: HolderMap<Arc<Slot>>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Slot {
    /// Where its line is, in a cluster.
    at: u16,
    mail: Mutex<Mail>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Mail {
    held: Option<FencingToken>,
    ask: bool,
    closed: bool,
}

impl Inbox {
    pub(crate) fn new(channel: String, grants: bool) -> Self {
        Self { channel, grants, state: Mutex::default() }
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    /// Makes a place for a waiter *before* its acquire is sent, so that a grant that comes early is kept.
    pub(crate) fn expect(&self, holder: HolderId, at: u16) {
        let slot = || Arc::new(Slot { at, ..Slot::default() });
        lock(&self.state).slots.entry(holder).or_insert_with(slot);
    }

    /// Takes the place away: the entry holds, is gone, or never was.
    pub(crate) fn forget(&self, holder: HolderId) {
        let slot = lock(&self.state).slots.remove(&holder);
        // Whoever still waits there asks once more and learns what happened.
        if let Some(slot) = slot.filter(|slot| Arc::strong_count(slot) > 1) {
            slot.post(|mail| mail.ask = true);
        }
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.state).slots.is_empty()
    }

    /// A message on the channel: the holder and the number that hold now. Anything else is not ours and is ignored;
    /// a grant that was mangled on its way is found by the next renewal.
    pub(crate) fn deliver(&self, message: &[u8]) {
        let Some((holder, token)) = std::str::from_utf8(message).ok().and_then(|text| text.split_once(' '))
        else {
            return;
        };
        let (Some(holder), Ok(token)) = (HolderId::from_hex(holder), token.parse()) else { return };
        let slot = lock(&self.state).slots.get(&holder).cloned();
        if let Some(slot) = slot {
            slot.post(|mail| if self.grants { mail.held = Some(token) } else { mail.ask = true });
        }
    }

    /// Messages may have been lost: everyone asks again.
    pub(crate) fn ask_all(&self) {
        self.ask(|_| true);
    }

    /// The same for those whose lines are at some of the slots of a cluster.
    pub(crate) fn ask(&self, lost: impl Fn(u16) -> bool) {
        for slot in self.all().into_iter().filter(|slot| lost(slot.at)) {
            slot.post(|mail| mail.ask = true);
        }
    }

    /// Fails once it is closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if lock(&self.state).closed { Err(closed()) } else { Ok(()) }
    }

    /// Ends every wait, now and later.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        for slot in self.all() {
            slot.post(|mail| mail.closed = true);
        }
    }

    fn all(&self) -> Vec<Arc<Slot>> {
        lock(&self.state).slots.values().cloned().collect()
    }

    /// Waits for the grant, or for a reason to ask. A waiter without a place gets one and asks first.
    pub(crate) async fn wait(&self, holder: HolderId, at: u16) -> Result<Wake> {
        let slot = {
            let mut state = lock(&self.state);
            if state.closed {
                return Err(closed());
            }
            match state.slots.get(&holder) {
                Some(slot) => slot.clone(),
                None => {
                    state.slots.insert(holder, Arc::new(Slot { at, ..Slot::default() }));
                    return Ok(Wake::Ask);
                }
            }
        };
        loop {
            let arrived = slot.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            if let Some(wake) = slot.look()? {
                return Ok(wake);
            }
            arrived.await;
        }
    }
}

impl Slot {
    fn post(&self, change: impl FnOnce(&mut Mail)) {
        change(&mut lock(&self.mail));
        self.arrived.notify_waiters();
    }

    /// A grant stays: it is as true the next time. A reason to ask is used up.
    fn look(&self) -> Result<Option<Wake>> {
        let mut mail = lock(&self.mail);
        if mail.closed {
            return Err(closed());
        }
        let asked = std::mem::take(&mut mail.ask);
        Ok(mail.held.map(Wake::Held).or(asked.then_some(Wake::Ask)))
    }
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the connection to Redis was closed by this client")
}

/// No code panics while it holds one of these locks, and the data is whole at every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HolderId = HolderId::from_u128(1);
    const B: HolderId = HolderId::from_u128(2);

    fn inbox() -> Inbox {
        let inbox = Inbox::new("c".into(), true);
        inbox.expect(A, 1);
        inbox.expect(B, 2);
        inbox
    }

    fn message(holder: HolderId, token: u64) -> Vec<u8> {
        format!("{} {token}", holder.to_hex()).into_bytes()
    }

    async fn is_idle(inbox: &Inbox, holder: HolderId) -> bool {
        tokio::select! { biased; _ = inbox.wait(holder, 1) => false, () = tokio::task::yield_now() => true }
    }

    #[tokio::test]
    async fn an_early_grant_is_kept_and_only_its_waiter_wakes() {
        let inbox = inbox();
        inbox.deliver(&message(A, 7));
        assert!(is_idle(&inbox, B).await);
        for _ in 0..2 {
            let token = FencingToken::new(7).unwrap();
            assert_eq!(inbox.wait(A, 1).await.unwrap(), Wake::Held(token));
        }
    }

    #[tokio::test]
    async fn mangled_messages_wake_nobody() {
        let inbox = inbox();
        let hex = A.to_hex();
        for bad in ["", " ", "x 7", &format!("{hex} 0"), &format!("{hex} -1"), &format!("{hex} 7 "), &hex] {
            inbox.deliver(bad.as_bytes());
        }
        inbox.deliver(b"\xff\xfe 7");
        assert!(is_idle(&inbox, A).await);
    }

    #[tokio::test]
    async fn a_reason_to_ask_is_used_once() {
        let inbox = inbox();
        inbox.ask_all();
        assert_eq!(inbox.wait(A, 1).await.unwrap(), Wake::Ask);
        assert!(is_idle(&inbox, A).await);
        assert_eq!(inbox.wait(B, 1).await.unwrap(), Wake::Ask);
        inbox.ask(|at| at == 2);
        assert!(is_idle(&inbox, A).await);
        assert_eq!(inbox.wait(B, 1).await.unwrap(), Wake::Ask);
    }

    #[tokio::test]
    async fn closing_ends_every_wait() {
        let inbox = Arc::new(inbox());
        let waiting = tokio::spawn({
            let inbox = inbox.clone();
            async move { inbox.wait(A, 1).await }
        });
        tokio::task::yield_now().await;
        inbox.close();
        assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(inbox.wait(HolderId::from_u128(9), 1).await.unwrap_err().kind(), ErrorKind::Closed);
    }
}
