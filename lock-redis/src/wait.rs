//! How waiters are notified: one channel per client, the inbox, and a place for every waiter where its grant is kept until it
//! is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onelock_core::toolkit::Mutex;
use onelock_core::{Error, ErrorKind, FencingToken, HolderId, HolderMap, Result, Wake};
use tokio::sync::Notify;

/// The channel of one client and its waiters.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) channel: String,
    /// Whether a pushed grant counts. Where replicas must have a grant it does not: the sender may be a master that
    /// is cut off, where leases end that are renewed elsewhere. The waiter asks, and the answer waits for the replicas.
    grants: bool,
    closed: AtomicBool,
    waiters: Mutex<HolderMap<Arc<Waiter>>>,
}

#[derive(Debug, Default)]
struct Waiter {
    mail: Mutex<Mail>,
    arrived: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mail {
    held: Option<FencingToken>,
    /// Whether there is a reason to ask on which the waiter has not acted.
    ask: bool,
    /// Whether the connection was lost since the last wait: the server that is reached next may not have the entry.
    lost: bool,
}

impl Inbox {
    pub(crate) fn new(channel: String, grants: bool) -> Self {
        Self { channel, grants, closed: AtomicBool::new(false), waiters: Mutex::default() }
    }

    /// From now on no connection of the client is made.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Closed, "the connection to Redis was closed by this client")),
            false => Ok(()),
        }
    }

    /// Makes a place for a waiter *before* its acquire is sent, so that a grant that comes early is kept.
    pub(crate) fn expect(&self, holder: HolderId) {
        self.waiters.lock().entry(holder).or_default();
    }

    /// Takes the place away: the entry holds, is gone, or never was.
    pub(crate) fn forget(&self, holder: HolderId) {
        let waiter = self.waiters.lock().remove(&holder);
        // A task that still waits there asks once more and learns what happened.
        if let Some(waiter) = waiter {
            waiter.post(|mail| mail.ask = true);
        }
    }

    /// A message on the channel: the holder and the number that hold now. Anything else is not ours and is ignored;
    /// a grant that was corrupted on its way is found by the next renewal.
    pub(crate) fn deliver(&self, message: &[u8]) {
        let text = std::str::from_utf8(message).unwrap_or_default();
        let Some((holder, token)) = text.split_once(' ') else { return };
        let (Some(holder), Ok(token)) = (HolderId::from_hex(holder), token.parse()) else { return };
        let waiter = self.waiters.lock().get(&holder).cloned();
        if let Some(waiter) = waiter {
            waiter.post(|mail| if self.grants { mail.held = Some(token) } else { mail.ask = true });
        }
    }

    /// The connection was lost, and messages with it: every waiter learns of it once, and asks again.
    pub(crate) fn connection_lost(&self) {
        let all: Vec<_> = self.waiters.lock().values().cloned().collect();
        all.iter().for_each(|waiter| waiter.post(|mail| (mail.ask, mail.lost) = (true, true)));
    }

    /// Waits for the grant, or for a reason to ask, which comes when `reach` has connected. A waiter without a place gets one
    /// and asks first.
    pub(crate) async fn wait<F: Future<Output = Result<()>>>(
        &self,
        holder: HolderId,
        own: Option<FencingToken>,
        reach: impl Fn() -> F,
    ) -> Result<Wake> {
        let known = self.waiters.lock().get(&holder).cloned();
        let Some(waiter) = known else {
            self.expect(holder);
            return Ok(Wake::Ask);
        };
        loop {
            let mut arrived = std::pin::pin!(waiter.arrived.notified());
            arrived.as_mut().enable();
            let mail = {
                let mut mail = waiter.mail.lock();
                // A grant of an earlier entry of this holder is a reason to ask.
                if mail.held.take_if(|token| own.is_some_and(|own| own != *token)).is_some() {
                    mail.ask = true;
                }
                Mail { lost: std::mem::take(&mut mail.lost), ..*mail }
            };
            // A grant stays: it is as true the next time.
            if let Some(token) = mail.held {
                return Ok(Wake::Held(token));
            }
            if mail.lost {
                return Err(Error::new(ErrorKind::Unavailable, "the connection that brings grants was lost"));
            }
            tokio::select! {
                biased;
                reached = reach(), if mail.ask => {
                    reached?;
                    // What came meanwhile is answered by asking, too.
                    waiter.mail.lock().ask = false;
                    return Ok(Wake::Ask);
                }
                () = arrived => {}
            }
        }
    }
}

impl Waiter {
    fn post(&self, change: impl FnOnce(&mut Mail)) {
        change(&mut self.mail.lock());
        self.arrived.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HolderId = HolderId::from_u128(1);
    const B: HolderId = HolderId::from_u128(2);

    async fn reached() -> Result<()> {
        Ok(())
    }

    fn inbox() -> Inbox {
        let inbox = Inbox::new("c".into(), true);
        inbox.expect(A);
        inbox.expect(B);
        inbox
    }

    fn message(holder: HolderId, token: u64) -> Vec<u8> {
        format!("{} {token}", holder.to_hex()).into_bytes()
    }

    async fn is_idle(inbox: &Inbox, holder: HolderId) -> bool {
        tokio::select! { biased; _ = inbox.wait(holder, None, reached) => false, () = tokio::task::yield_now() => true }
    }

    #[tokio::test]
    async fn an_early_grant_is_kept_and_only_its_waiter_wakes() {
        let inbox = inbox();
        inbox.deliver(&message(A, 7));
        assert!(is_idle(&inbox, B).await);
        for _ in 0..2 {
            let token = FencingToken::new(7).unwrap();
            assert_eq!(inbox.wait(A, None, reached).await.unwrap(), Wake::Held(token));
        }
    }

    #[tokio::test]
    async fn corrupted_messages_wake_nobody() {
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
        inbox.connection_lost();
        for holder in [A, B] {
            let lost = inbox.wait(holder, None, reached).await.unwrap_err();
            assert_eq!(lost.kind(), ErrorKind::Unavailable);
            assert_eq!(inbox.wait(holder, None, reached).await.unwrap(), Wake::Ask);
            assert!(is_idle(&inbox, holder).await);
        }
    }

    /// The server is away: a waiter that cannot ask yet has not asked.
    #[tokio::test]
    async fn a_reason_to_ask_is_kept_until_the_server_is_reached() {
        let inbox = inbox();
        inbox.connection_lost();
        let away = || std::future::ready(Err(Error::new(ErrorKind::Unavailable, "away")));
        for _ in 0..3 {
            assert_eq!(inbox.wait(A, None, away).await.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert_eq!(inbox.wait(A, None, reached).await.unwrap(), Wake::Ask);
        assert!(is_idle(&inbox, A).await);
    }
}
