//! Waiting: one stream of watches per client, one watch per waited-for name, opened ahead and kept for a while.
//!
//! etcd serves a watch that starts at a past revision from a loop that runs every 100 ms, so a watch opened for each
//! wait costs that much at every hand-over. Here a watch starts at the present, the line is read after it stands, and
//! from then on everything that happens in it reaches it at once. It stays open for [`LINGER`] after the last waiter left, so a busy
//! name keeps its watch.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{WatchRequestSender, WatchResponse, WatchResponseStream};
use onelock_core::{Error, ErrorKind, Mode, Result, Wake};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::{Failure, watch_refused};
use crate::keys::Span;
use crate::lines::{self, Reading};
use crate::members::{Members, closed, runtime_gone};
use crate::orders::{Opening, Orders};
use crate::watch::{LINGER, Look, Told, User, Waiting, Watch};

/// The longest pause before a broken stream is opened again.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often a watch may be refused to a user who can read the line.
const REFUSALS: usize = 5;

/// The watches of a client.
#[derive(Debug)]
pub(crate) struct Watches {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    members: Arc<Members>,
    runtime: Handle,
    state: Mutex<State>,
    /// Told when there is something to send.
    todo: Notify,
}

#[derive(Debug, Default)]
struct State {
    by_line: HashMap<Vec<u8>, Arc<Watch>>,
    /// What the task must do on its stream.
    orders: Orders,
    running: bool,
}

impl Watches {
    pub(crate) fn new(members: Arc<Members>, runtime: Handle) -> Self {
        let shared = Shared { members, runtime, state: Mutex::default(), todo: Notify::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Opens the watch of a line before anybody waits.
    pub(crate) fn prepare(&self, span: &Span) {
        drop(self.shared.user(span));
    }

    /// Takes what a request has read of a line up to the number `upto`, if the line is watched.
    pub(crate) fn learn(&self, span: &Span, reading: &Reading, upto: i64) {
        let watch = self.shared.lock().by_line.get(&span.start).cloned();
        if let Some(watch) = watch {
            watch.learn(reading, upto);
        }
    }

    /// Takes an entry out that this client has deleted, if its line is watched.
    pub(crate) fn left(&self, span: &Span, key: &[u8]) {
        let watch = self.shared.lock().by_line.get(&span.start).cloned();
        if let Some(watch) = watch {
            watch.left(key);
        }
    }

    /// Up to which number every living entry of the line is known, if it is watched; and whether an entry of this mode that
    /// joins now would wait as far as this client knows.
    pub(crate) fn known(&self, span: &Span, mode: Mode) -> Option<(i64, bool)> {
        let watch = self.shared.lock().by_line.get(&span.start).cloned();
        watch?.known_to(mode)
    }

    /// Waits until the entry with this key holds, or is gone, or its line has to be read again.
    pub(crate) async fn wait(&self, span: &Span, key: &[u8], number: Option<i64>) -> Result<Wake> {
        let members = &self.shared.members;
        let mut refusals = 0;
        loop {
            let user = self.shared.user(span);
            if let Err(error) = user.0.live().await {
                if error.kind() != ErrorKind::Denied {
                    return Err(error);
                }
                // A session that ended is refused like a missing right. A request tells, and begins a new session.
                Box::pin(lines::read(members, span, Some(1))).await?;
                refusals += 1;
                if refusals > REFUSALS {
                    // Who may read a line may watch it: it is the session that ends again and again.
                    return Err(Error::new(ErrorKind::Unavailable, format!("watches are refused: {error}")));
                }
                continue;
            }
            match user.0.look(key, number) {
                Look::Now(wake) => return wake,
                Look::Again => {}
                Look::Ahead => self.shared.come_near(&user.0),
                Look::Later(told) => {
                    let _waiting = Waiting { watch: &user.0, key };
                    match told.await {
                        Ok(Told::Wake(wake)) => return wake,
                        Ok(Told::LookAgain) => {}
                        Err(_) => return members.open().map(|()| Wake::Ask),
                    }
                }
                Look::Read => {
                    // In a place of its own: a waiter keeps no room for requests while it waits.
                    let (reading, ours) = Box::pin(self.read(&user.0, span)).await?;
                    let seen = reading.line.iter().any(|seat| seat.key == key);
                    if number.is_none() && ours && !seen {
                        return Ok(Wake::Ask);
                    }
                }
            }
        }
    }

    /// Reads what is new in a line, once for all who wait there; and whether it was for this one: another's reading may be
    /// older than the entry that is looked for.
    async fn read(&self, watch: &Arc<Watch>, span: &Span) -> Result<(Arc<Reading>, bool)> {
        let mut ours = false;
        let read = watch.reading.join(&self.shared.runtime, || {
            ours = true;
            let (members, watch, span) = (Arc::clone(&self.shared.members), Arc::clone(watch), span.clone());
            async move {
                let known = watch.known().unwrap_or_default();
                let reading = lines::read_new(&members, &span, known).await?;
                watch.learn(&reading, reading.revision);
                Ok(Arc::new(reading))
            }
        });
        match read.await {
            Some(reading) => Ok((reading?, ours)),
            None => Err(runtime_gone()),
        }
    }

    /// Ends every wait.
    pub(crate) fn close(&self) {
        let mut state = self.shared.lock();
        state.orders.clear();
        let watches: Vec<_> = state.by_line.drain().map(|(_, watch)| watch).collect();
        drop(state);
        for watch in watches {
            watch.fail(closed());
        }
        self.shared.todo.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watch of a line; a new one is opened in the background. Counted as used in the same step: what nobody uses may be
    /// closed.
    fn user(self: &Arc<Self>, span: &Span) -> User {
        let mut state = self.lock();
        if let Some(watch) = state.by_line.get(&span.start) {
            return User::new(Arc::clone(watch));
        }
        let watch = Arc::new(Watch::new(span.clone()));
        let user = User::new(Arc::clone(&watch));
        if self.members.open().is_err() {
            watch.fail(closed());
            return user;
        }
        watch.open(&mut state.orders);
        state.by_line.insert(span.start.clone(), watch);
        if !state.running {
            state.running = true;
            self.runtime.spawn(Arc::clone(self).run());
        }
        drop(state);
        self.todo.notify_one();
        user
    }

    /// Follows a line again for somebody near the front.
    fn come_near(&self, watch: &Arc<Watch>) {
        watch.come_near(&mut self.lock().orders);
        self.todo.notify_one();
    }

    /// Follows a line, or stops to.
    fn turn(&self, watch: &Arc<Watch>) {
        let mut state = self.lock();
        if !watch.turn(&mut state.orders) {
            state.by_line.remove(&watch.span.start);
        }
        if state.orders.are_due() {
            self.todo.notify_one();
        }
    }

    /// The task: it runs while there is a watch.
    async fn run(self: Arc<Self>) {
        let mut pause = Duration::ZERO;
        loop {
            let started = Instant::now();
            if self.members.open().is_err() {
                return;
            }
            let logins = self.members.logins();
            match self.stream().await {
                Ok(()) => return,
                Err(failure @ Failure::StaleToken(_)) => {
                    self.reopen();
                    let _ = self.members.settle(logins, self.members.try_time(), failure).await;
                }
                Err(error) => self.broken(&error),
            }
            // A stream that stood for a while is opened again at once.
            let stood = started.elapsed() > LONGEST_PAUSE;
            pause = if stood { Duration::ZERO } else { (pause * 2).max(Duration::from_millis(20)) };
            tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
        }
    }

    /// One stream, until no watch is left (`Ok`) or it breaks.
    async fn stream(&self) -> Result<(), Failure> {
        let limit = self.members.connect_time() + self.members.try_time();
        let mut moved = self.members.moved.subscribe();
        let first = {
            let mut state = self.lock();
            let State { by_line, orders, .. } = &mut *state;
            orders.clear();
            by_line.values().for_each(|watch| watch.open(orders));
            match orders.first() {
                Some(first) => first,
                None => {
                    state.running = false;
                    return Ok(());
                }
            }
        };
        let member = self.members.current();
        let open = async {
            let (_, client) = self.members.client().await?;
            let stream = client.watch_client().watch(first.start, Some(first.options)).await;
            stream.map_err(|error| self.members.failure(error))
        };
        let stream = match timeout(limit, open).await {
            Ok(stream) => stream,
            Err(_) => Err(self.members.late(limit).into()),
        };
        let stream = stream.inspect_err(|_| self.members.leave(member))?;
        let (mut sender, mut answers) = stream.split();
        // Until every watch stands the server owes an answer.
        let mut owed = Some(Instant::now() + limit);
        let mut idle = tokio::time::interval(LINGER / 2);
        self.todo.notify_one();
        loop {
            let waiting = owed.unwrap_or_else(|| Instant::now() + LINGER);
            tokio::select! {
                message = next(&mut answers, &self.members) => {
                    self.take(message?)?;
                    if owed.is_some() && !self.lock().by_line.values().any(|watch| watch.is_opening()) {
                        owed = None;
                    }
                }
                () = self.todo.notified() => {
                    if self.send(&mut sender, limit).await? {
                        owed = owed.or(Some(Instant::now() + limit));
                    }
                }
                _ = moved.changed() => {
                    self.members.open()?;
                    let text = "another member of the cluster took over";
                    return Err(Error::new(ErrorKind::Unavailable, text).into());
                }
                () = sleep_until(waiting), if owed.is_some() => {
                    self.members.leave(member);
                    return Err(self.members.late(limit).into());
                }
                _ = idle.tick() => {
                    if self.close_idle() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Sends what is to be opened and closed; whether something is to be opened.
    async fn send(&self, sender: &mut WatchRequestSender, limit: Duration) -> Result<bool, Failure> {
        let (open, close) = self.lock().orders.take();
        let opens = !open.is_empty();
        let work = async {
            for id in close {
                sender.cancel(id).await?;
            }
            for Opening { start, options, .. } in open {
                sender.watch(start, Some(options)).await?;
            }
            Ok(opens)
        };
        match timeout(limit, work).await {
            Ok(sent) => sent.map_err(|error| self.members.failure(error)),
            Err(_) => Err(self.members.late(limit).into()),
        }
    }

    /// Takes one message of the stream.
    fn take(&self, message: WatchResponse) -> Result<(), Failure> {
        let message = message.0;
        if message.canceled && is_refusal(&message.cancel_reason) {
            // Some servers do not say which watch they refuse: then it is one of those that do not stand yet.
            let id = message.watch_id;
            self.refuse(&message.cancel_reason, |watch| watch.has(id) || (id <= 0 && watch.is_opening()));
            // The stream has the token that it was opened with: one that is not good any more refuses all that follow.
            return Err(Failure::StaleToken(message.cancel_reason));
        }
        // One that was closed meanwhile has none.
        let id = message.watch_id;
        let Some(watch) = self.lock().orders.watch(id) else { return Ok(()) };
        if message.canceled {
            // Compacted, or the server has other reasons: the whole stream begins anew.
            let text = format!("etcd ended a watch: {}", message.cancel_reason);
            return Err(Error::new(ErrorKind::Unavailable, text).into());
        }
        if message.created {
            let revision = message.header.as_ref().map_or(0, |header| header.revision);
            watch.stands(id, revision);
        }
        if !message.events.is_empty() && watch.happened(id, message.events) {
            self.turn(&watch);
        }
        Ok(())
    }

    /// Ends watches that the user may not have, or not before a new session: their waiters find out which.
    fn refuse(&self, reason: &str, which: impl Fn(&Watch) -> bool) {
        let mut refused = Vec::new();
        let mut state = self.lock();
        let State { by_line, orders, .. } = &mut *state;
        by_line.retain(|_, watch| {
            let keep = !which(watch);
            if !keep {
                watch.close(orders);
                refused.push(Arc::clone(watch));
            }
            keep
        });
        drop(state);
        refused.iter().for_each(|watch| watch.fail(watch_refused(reason, self.members.prefix())));
    }

    /// The stream is gone: everybody has to ask, and nothing that was known counts.
    fn broken(&self, error: &Failure) {
        if let Failure::Other(error) = error
            && error.kind() == ErrorKind::Denied
        {
            return self.refuse(&error.to_string(), |_| true);
        }
        self.reopen();
    }

    fn reopen(&self) {
        let watches: Vec<_> = self.lock().by_line.values().cloned().collect();
        watches.iter().for_each(|watch| watch.reopens());
    }

    /// Closes what nobody used for a while; whether nothing is left, and then the task ends.
    fn close_idle(&self) -> bool {
        let mut state = self.lock();
        let State { by_line, orders, .. } = &mut *state;
        by_line.retain(|_, watch| {
            let keep = watch.is_used();
            if !keep {
                watch.close(orders);
            }
            keep
        });
        if state.by_line.is_empty() {
            state.running = false;
            return true;
        }
        if state.orders.are_due() {
            self.todo.notify_one();
        }
        false
    }
}

/// Whether etcd ended a watch for want of a right or of a session.
fn is_refusal(reason: &str) -> bool {
    ["permission denied", "auth", "user"].iter().any(|word| reason.contains(word))
}

async fn next(answers: &mut WatchResponseStream, members: &Members) -> Result<WatchResponse, Failure> {
    let ended = || Error::new(ErrorKind::Unavailable, "etcd ended the stream of watches");
    Ok(answers.message().await.map_err(|error| members.failure(error))?.ok_or_else(ended)?)
}
