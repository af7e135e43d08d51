//! Re-entrancy by an explicit owner: never by thread or task, which two branches of one `join!` share.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use tokio::sync::{Notify, oneshot};
use tokio::task::coop::consume_budget;

use super::acquire::{self, Handle, Terms};
use super::guard::Guard;
use super::hold::Hold;
use super::progress::Progress;
use super::shared::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::mode::Mode;
use crate::name::LockName;
use crate::toolkit::{Mutex, sweep};

/// The identity that may enter a lock again that it already holds. Cheap to clone; clones are the same owner.
///
/// Entering again sends no request and gives the same token. A second acquisition of a name joins the owner's
/// first one in flight, with the lease and the other terms of that one, and goes on with it if it is cancelled or not polled.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> onelock::Result<()> {
/// # let locks = onelock::connect("memory://").await?;
/// let owner = locks.owner();
/// let lock = locks.mutex("orders/42")?.owner(&owner)?;
/// let outer = lock.acquire().await?;
/// let inner = lock.acquire().await?;
/// assert_eq!(inner.token()?, outer.token()?);
/// // Another owner waits as everybody does.
/// assert!(locks.mutex("orders/42")?.owner(&locks.owner())?.try_acquire().await?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Owner {
    client: Weak<Client>,
    /// Those that a lock or what it holds uses, and some that have ended.
    slots: Arc<Mutex<HashMap<LockName, Weak<Slot>>>>,
}

impl Owner {
    pub(super) fn new(client: &Arc<Client>) -> Self {
        Self { client: Arc::downgrade(client), slots: Arc::default() }
    }

    pub(super) fn check(&self, client: &Arc<Client>) -> Result<()> {
        if self.client.as_ptr() == Arc::as_ptr(client) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Misuse, "this owner belongs to another client"))
    }

    /// This owner's place for a name.
    pub(super) fn slot(&self, name: &LockName) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(name).and_then(Weak::upgrade) {
            return slot;
        }
        sweep(&mut slots, |slot| slot.strong_count() > 0);
        let slot = Arc::new(Slot::default());
        slots.insert(name.clone(), Arc::downgrade(&slot));
        slot
    }
}

/// What an owner has and does about one name.
#[derive(Default)]
pub(super) struct Slot {
    state: Mutex<State>,
    /// Notified when the acquisition under way can go on, or has ended.
    woken: Notify,
}

impl Slot {
    /// As [`acquire::acquire`]; what the owner holds is entered again, and what it asks for already is joined.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        client: &Arc<Client>,
        terms: &Terms,
        waits: Option<&Progress>,
    ) -> Result<Option<Guard>> {
        let _caller = Caller::of(self);
        let mut part = Part::default();
        loop {
            // First, so that no wake-up is missed.
            let woken = self.woken.notified();
            if let Some(answer) = self.step(client, terms, waits, &mut part)? {
                return Ok(answer);
            }
            woken.await;
            // A call that wakes itself yields to other tasks.
            consume_budget().await;
        }
    }

    /// Enters again if held, refuses what would wait for itself, or goes on with the acquisition under way: `None` while that has
    /// no answer for this caller. A try takes part in none that another call began: whether the owner will hold is not known now.
    fn step(
        self: &Arc<Self>,
        client: &Arc<Client>,
        terms: &Terms,
        waits: Option<&Progress>,
        part: &mut Part,
    ) -> Result<Option<Option<Guard>>> {
        // Dropped after `state`: it may be the last use of its lock.
        let hold;
        let mut state = self.state.lock();
        // Read under the lock under which it is sent: a call whose acquisition has ended without a lock begins no other.
        if let Some(Ok(ended)) = part.own.as_mut().map(oneshot::Receiver::try_recv) {
            return ended.map(|()| Some(None));
        }
        hold = state.hold.upgrade();
        // A lost lock is not entered; the owner asks anew.
        let guard = hold.as_ref().and_then(|hold| hold.enter().ok());
        let others = state.asking.as_ref().filter(|asking| part.number != Some(asking.number));
        if let Some(has) = guard.as_ref().map(Guard::mode).or(others.map(|asking| asking.mode)) {
            if !has.covers(terms.mode) {
                drop(state);
                let text = format!(
                    "the owner has `{}` in mode {has} and would wait for itself in mode {}",
                    terms.name, terms.mode
                );
                return Err(Error::new(ErrorKind::WouldDeadlock, text));
            }
            if guard.is_some() || waits.is_none() {
                return Ok(Some(guard));
            }
        }
        // Taken out, so that one that panics is not polled again.
        let mut asking = state.asking.take().unwrap_or_else(|| {
            state.begun += 1;
            let (client, terms, progress) = (Arc::clone(client), terms.clone(), waits.cloned());
            let (tell, ended) = oneshot::channel();
            part.own = Some(ended);
            let (mode, asked) = (terms.mode, progress.clone());
            let call = Box::pin(async move { acquire::acquire(&client, &terms, asked.as_ref()).await });
            Asking { number: state.begun, mode, tell, progress, call }
        });
        part.number = Some(asking.number);
        let waker = Waker::from(Arc::clone(self));
        let guard = match asking.call.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                if let (Some(own), Some(asked)) = (waits, &asking.progress) {
                    own.follow(asked);
                }
                state.asking = Some(asking);
                return Ok(None);
            }
            Poll::Ready(Ok(Some(handle))) => {
                let guard = Guard::new(handle, Some(Arc::clone(self) as _));
                state.hold = Arc::downgrade(&guard.hold);
                Some(guard)
            }
            Poll::Ready(without) => {
                // Its caller may be gone.
                let _ = asking.tell.send(without.map(|_| ()));
                None
            }
        };
        drop(state);
        self.woken.notify_waiters();
        Ok(guard.map(Some))
    }
}

/// The acquisition that a caller takes part in.
#[derive(Default)]
struct Part {
    number: Option<u64>,
    /// That the one which it began has ended without a lock.
    own: Option<oneshot::Receiver<Result<()>>>,
}

/// That the acquisition under way can go on.
impl Wake for Slot {
    fn wake(self: Arc<Self>) {
        self.woken.notify_waiters();
    }
}

#[derive(Default)]
struct State {
    hold: Weak<Hold>,
    asking: Option<Asking>,
    /// How many acquisitions were begun.
    begun: u64,
    /// How many calls to acquire there are.
    callers: usize,
}

/// The acquisition under way. Whichever of its callers is polled goes on with it, so none can keep the others waiting.
struct Asking {
    number: u64,
    mode: Mode,
    /// To the caller whose terms it follows: that it ended without a lock.
    tell: oneshot::Sender<Result<()>>,
    /// What it has learned, for all of them.
    progress: Option<Progress>,
    call: Pin<Box<dyn Future<Output = Result<Option<Handle>>> + Send>>,
}

/// One call to acquire. With the last one the acquisition under way ends.
struct Caller<'a>(&'a Slot);

impl<'a> Caller<'a> {
    fn of(slot: &'a Slot) -> Self {
        slot.state.lock().callers += 1;
        Self(slot)
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.callers -= 1;
        let nobodys = if state.callers == 0 { state.asking.take() } else { None };
        drop(state);
        drop(nobodys);
        // A poll that panicked has ended the acquisition and woken nobody.
        self.0.woken.notify_waiters();
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::TokioClock;
    use crate::memory::{MemoryBackend, MemoryStore};

    #[tokio::test]
    async fn slots_that_are_let_go_leave_the_map() {
        let clock = Arc::new(TokioClock::new());
        let backend = Arc::new(MemoryBackend::new(&MemoryStore::new(clock.clone())));
        let locks = crate::Locks::builder(backend).clock(clock).build().unwrap();
        let owner = locks.owner();
        let kept = owner.slot(&LockName::new("kept").unwrap());
        for round in 0..20_000 {
            owner.slot(&LockName::new(format!("n{round}")).unwrap());
        }
        let left = owner.slots.lock().len();
        assert!(left < 50, "{left}");
        assert!(Arc::ptr_eq(&kept, &owner.slot(&LockName::new("kept").unwrap())));
    }
}
