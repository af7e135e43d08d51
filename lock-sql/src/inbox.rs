//! The waiters of this client, and the task that polls for them where the server does not notify.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::toolkit::Mutex;
use onelock_core::{Error, ErrorKind, HolderId, HolderMap, LockName, Renewed, Result, Ticket, Wake};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// The pause while the server cannot be reached.
const UNREACHED: Duration = Duration::from_millis(500);

/// The pause for each entry that was asked for, at least: however many names, one client keeps the server no busier.
const PER_ENTRY: Duration = Duration::from_micros(100);

/// A waiter with this many ahead, or more, is polled so many times more rarely than the next one.
const FAR: u32 = 8;

/// How many of one name are asked for at once: they may hold together.
const TOGETHER: usize = 64;

/// The entries of this client that wait.
#[derive(Default)]
pub(crate) struct Inbox {
    waiters: Mutex<HolderMap<Arc<Waiter>>>,
    /// Somebody begins to wait, or polls are needed from now on.
    pub(crate) changed: Notify,
    /// This client released an entry that one of its waiters is behind.
    urgent: Notify,
    polling: Mutex<Option<JoinHandle<()>>>,
}

/// One entry that waits.
#[derive(Default)]
struct Waiter {
    state: Mutex<State>,
    notified: Notify,
}

#[derive(Default)]
struct State {
    wake: Option<Wake>,
    /// Whether the connection was lost since the last wait: the server that is reached next may not have the entry.
    lost: bool,
    /// How many calls wait, and for what.
    calls: usize,
    ticket: Option<Ticket>,
}

impl Waiter {
    fn notify(&self, wake: Wake) {
        let mut state = self.state.lock();
        if !matches!((state.wake, wake), (Some(Wake::Held(_)), Wake::Ask)) {
            state.wake = Some(wake);
        }
        drop(state);
        self.notified.notify_waiters();
    }

    /// What is waited for, while nothing has come.
    fn waiting(&self) -> Option<Ticket> {
        let state = self.state.lock();
        state.ticket.clone().filter(|_| state.calls > 0 && state.wake.is_none())
    }

    /// A grant stays for the next wait; a call to ask is for one. That of an earlier entry of this holder is a call to ask.
    fn take(&self, ticket: &Ticket) -> Option<Result<Wake>> {
        let state = &mut *self.state.lock();
        match state.wake {
            Some(Wake::Held(token)) if ticket.token.is_none_or(|own| own == token) => state.wake.map(Ok),
            _ if std::mem::take(&mut state.lost) => {
                Some(Err(Error::new(ErrorKind::Unavailable, "the connection that brings grants was lost")))
            }
            _ => state.wake.take().map(|_| Ok(Wake::Ask)),
        }
    }
}

impl Inbox {
    /// Keeps what comes for an entry from now on. Whether that was so before.
    #[cfg(feature = "postgres")]
    pub(crate) fn expect(&self, holder: HolderId) -> bool {
        let mut waiters = self.waiters.lock();
        let known = waiters.contains_key(&holder);
        waiters.entry(holder).or_default();
        known
    }

    /// Waits for what comes for an entry.
    ///
    /// # Cancel safety
    /// Safe: what comes between two waits is kept.
    pub(crate) async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        let waiter = Arc::clone(self.waiters.lock().entry(ticket.holder).or_default());
        let _call = Call::new(&waiter, ticket);
        self.changed.notify_one();
        loop {
            let notified = waiter.notified.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if let Some(wake) = waiter.take(ticket) {
                return wake;
            }
            notified.await;
        }
    }

    /// Notifies an entry, if something is expected for it.
    pub(crate) fn notify(&self, holder: HolderId, wake: Wake) {
        let waiter = self.waiters.lock().get(&holder).cloned();
        if let Some(waiter) = waiter {
            waiter.notify(wake);
        }
    }

    /// The entry waits no more: it holds, or is gone.
    pub(crate) fn settle(&self, holder: HolderId, wake: Wake) {
        let waiter = self.waiters.lock().remove(&holder);
        if let Some(waiter) = waiter {
            waiter.notify(wake);
        }
    }

    /// What a renewal said.
    pub(crate) fn renewed(&self, holder: HolderId, renewed: &Renewed) {
        match renewed {
            // In case the notification was lost.
            Renewed::Held(grant) => self.settle(holder, Wake::Held(grant.token)),
            Renewed::Waiting(_) => {}
            Renewed::NotHeld => self.settle(holder, Wake::Ask),
        }
    }

    /// The connection that brings grants was lost, and what came meanwhile: every waiter learns of it once, and asks.
    #[cfg(feature = "postgres")]
    pub(crate) fn connection_lost(&self) {
        self.lost();
        self.ask_all();
    }

    /// The next server may lack entries: every waiter learns of it once, when it is woken.
    fn lost(&self) {
        self.waiters.lock().values().for_each(|waiter| waiter.state.lock().lost = true);
    }

    /// Something may have been missed: everybody asks.
    pub(crate) fn ask_all(&self) {
        let waiters: Vec<_> = self.waiters.lock().values().cloned().collect();
        for waiter in waiters {
            waiter.notify(Wake::Ask);
        }
    }

    /// Whether somebody waits.
    pub(crate) fn is_waited_for(&self, name: Option<&LockName>) -> bool {
        let waits = |ticket: Ticket| name.is_none_or(|name| ticket.name == *name);
        self.waiters.lock().values().filter_map(|waiter| waiter.waiting()).any(waits)
    }

    /// An entry of this name has left: a waiter here may hold.
    #[cfg(feature = "mysql")]
    pub(crate) fn released(&self, name: &LockName) {
        if self.is_waited_for(Some(name)) {
            self.urgent.notify_one();
        }
    }

    /// Whom to ask for: grants follow the line, so of the waiters of one name the foremost, and those behind it that may hold
    /// beside it.
    fn foremost(&self) -> Vec<Ticket> {
        let mut waiting: Vec<_> =
            self.waiters.lock().values().filter_map(|waiter| waiter.waiting()).collect();
        waiting.sort_unstable_by(|a, b| (&a.name, a.token).cmp(&(&b.name, b.token)));
        let mut chosen = Vec::new();
        for line in waiting.chunk_by(|a, b| a.name == b.name) {
            let (first, behind) = (&line[0], &line[1..]);
            let beside =
                behind.iter().take(TOGETHER - 1).take_while(|ticket| first.mode.shares_with(ticket.mode));
            chosen.extend(std::iter::once(first).chain(beside).cloned());
        }
        chosen
    }

    /// Polls on this runtime, unless that is done already. After something has changed the pause is the first, and while nothing
    /// does it grows to the second.
    pub(crate) fn poll_by<P: Poll>(self: &Arc<Self>, pauses: (Duration, Duration), poll: impl FnOnce() -> P) {
        let mut polling = self.polling.lock();
        if polling.as_ref().is_none_or(JoinHandle::is_finished) {
            *polling = Some(tokio::spawn(run(Polling(Arc::clone(self)), pauses, poll())));
        }
    }

    /// Polls no more.
    pub(crate) fn close(&self) {
        let polling = self.polling.lock().take();
        if let Some(polling) = polling {
            polling.abort();
        }
    }
}

/// A call that waits.
struct Call<'a>(&'a Waiter);

impl<'a> Call<'a> {
    fn new(waiter: &'a Waiter, ticket: &Ticket) -> Self {
        let mut state = waiter.state.lock();
        state.calls += 1;
        state.ticket = Some(ticket.clone());
        Self(waiter)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.state.lock().calls -= 1;
    }
}

/// How a server is polled for waiters.
pub(crate) trait Poll: Send + Sync + 'static {
    /// Whether nobody else notifies just now.
    fn is_needed(&self) -> bool {
        true
    }

    /// What the server says of each.
    fn ask(&self, waiting: &[Ticket]) -> impl Future<Output = Result<Vec<Polled>>> + Send;
}

/// What a poll says of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    /// It holds, or is gone.
    Wake(Wake),
    /// It waits, and so many have to leave before it holds.
    Waits(u32),
}

/// The inbox of the task that polls.
struct Polling(Arc<Inbox>);

impl Drop for Polling {
    fn drop(&mut self) {
        // The runtime of this task may have ended while others wait on another one. They ask, and the next wait polls there.
        self.0.ask_all();
    }
}

async fn run(polling: Polling, (first, most): (Duration, Duration), poll: impl Poll) {
    let inbox = &polling.0;
    let (mut step, mut last) = (first, Vec::new());
    loop {
        let waiting = if poll.is_needed() { inbox.foremost() } else { Vec::new() };
        if waiting.is_empty() {
            inbox.changed.notified().await;
            // A new waiter has just been answered that it waits; and where notifications come through, the first comes soon.
            let _ = timeout(first, inbox.urgent.notified()).await;
            (step, last) = (first, Vec::new());
            continue;
        }
        // When the server cannot be polled, the waiters' renewals report it.
        let Ok(answers) = poll.ask(&waiting).await else {
            inbox.lost();
            sleep(UNREACHED).await;
            continue;
        };
        let mut near = FAR;
        for (ticket, answer) in waiting.iter().zip(&answers) {
            match answer {
                Polled::Wake(wake) => {
                    inbox.notify(ticket.holder, *wake);
                    near = 1;
                }
                Polled::Waits(ahead) => near = near.min((*ahead).max(1)),
            }
        }
        step = if answers == last { (step + step / 2).min(most) } else { first };
        last = answers;
        let entries = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        let pause = (step * near).max(PER_ENTRY.saturating_mul(entries)).min(UNREACHED.max(most));
        let changed = async {
            inbox.changed.notified().await;
            sleep(first).await;
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = changed => {}
            () = inbox.urgent.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use onelock_core::{FencingToken, Mode, Request};

    use super::*;

    fn ticket(name: &str, token: i64, mode: Mode) -> Ticket {
        let request = Request::new(
            LockName::new(name).unwrap(),
            HolderId::random().unwrap(),
            mode,
            Duration::from_secs(1),
        );
        request.ticket().token(FencingToken::new(token).unwrap())
    }

    #[tokio::test]
    async fn a_grant_is_kept_for_the_next_wait() {
        let (inbox, ticket) = (Inbox::default(), ticket("n", 7, Mode::Exclusive));
        let held = Wake::Held(ticket.token.unwrap());
        assert!(futures_util::poll!(Box::pin(inbox.wait(&ticket))).is_pending());
        inbox.notify(ticket.holder, held);
        inbox.ask_all();
        assert_eq!((inbox.wait(&ticket).await.unwrap(), inbox.wait(&ticket).await.unwrap()), (held, held));
    }

    #[tokio::test]
    async fn the_foremost_of_each_name_is_asked_for() {
        let inbox = Inbox::default();
        let of = |name, token, mode| ticket(name, token, mode);
        let all = [
            of("x", 9, Mode::Exclusive),
            of("x", 2, Mode::Exclusive),
            of("s", 5, Mode::Exclusive),
            of("s", 4, Mode::Shared),
            of("s", 3, Mode::Shared),
        ];
        let mut waits: Vec<_> = all.iter().map(|ticket| Box::pin(inbox.wait(ticket))).collect();
        for wait in &mut waits {
            assert!(futures_util::poll!(wait).is_pending());
        }
        let numbers = || inbox.foremost().iter().map(|t| t.token.unwrap().get()).collect::<Vec<_>>();
        assert_eq!(numbers(), [3, 4, 2]);
        // Neither a waiter that was notified nor one whose call ended is asked for again.
        inbox.notify(all[4].holder, Wake::Ask);
        drop(waits.remove(1));
        assert_eq!(numbers(), [4, 9]);
    }
}
