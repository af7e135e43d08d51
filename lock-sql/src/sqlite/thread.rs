//! The thread that owns the connection: it takes verbs from a queue, runs all that are there in one transaction, and wakes
//! those that wait.
//!
//! A thread of our own, because SQLite blocks by nature and because a verb must not be cut half way: dropping the
//! future of a call only drops its answer. Nothing here needs the caller's runtime, so its end hurts nobody.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Clock, Error, ErrorKind, Result, Ticket, Wake};
use tokio::sync::{mpsc, oneshot};

use super::config::SqliteConfig;
use super::connection::Connection;
use super::error::Fault;
use super::keys::Key;
use super::line::Transaction;
use super::wait::{self, Waiters};

/// How many verbs share a transaction at most: sharing saves each a wait for the disk, and other processes get a turn
/// in between.
const BATCH: usize = 256;

/// How long the disk may take, beside waiting for other writers, before the callers get an error that it hangs.
const STALL: Duration = Duration::from_secs(15);

/// What a verb does to the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Reads,
    /// It may be lost with the power: it comes back as an entry of an earlier boot, and those are dropped.
    Writes,
    /// It takes a number, which must never be given twice, so it is on the disk before it is answered.
    Joins,
}

/// A verb and whom to answer.
trait Call: Send {
    fn effect(&self) -> Effect;
    /// Keeps its answer until the transaction has been committed. A transaction may be tried again.
    fn run(&mut self, tx: &mut Transaction<'_>) -> Result<(), Fault>;
    fn answer(self: Box<Self>, committed: Result<()>);
}

struct Verb<T, F> {
    effect: Effect,
    run: F,
    done: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T: Send, F: FnMut(&mut Transaction<'_>) -> Result<T, Fault> + Send> Call for Verb<T, F> {
    fn effect(&self) -> Effect {
        self.effect
    }

    fn run(&mut self, tx: &mut Transaction<'_>) -> Result<(), Fault> {
        self.done = Some(match (self.run)(tx) {
            Err(Fault::Verb(error)) => Err(error),
            done => Ok(done?),
        });
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<()>) {
        let Self { done, reply, .. } = *self;
        if let Some(answer) = committed.map_or_else(|error| Some(Err(error)), |()| done) {
            // A caller that went away needs no answer.
            let _ = reply.send(answer);
        }
    }
}

enum Message {
    Call(Box<dyn Call>),
    Wait(Ticket, wait::Reply),
    Close(oneshot::Sender<()>),
}

/// The way to the thread, which ends when this is dropped.
pub(super) struct Queue {
    messages: mpsc::UnboundedSender<Message>,
    /// How long a call may take.
    limit: Duration,
}

impl Queue {
    /// Opens the file on a thread of its own.
    pub(super) async fn start(config: SqliteConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let (queue, messages) = mpsc::unbounded_channel();
        let (opened, result) = oneshot::channel();
        let limit = config.busy_timeout + STALL;
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(e) => return drop(opened.send(Err(no_thread(&e)))),
            };
            let waiters = Waiters::new(config.poll);
            let mut worker =
                Worker { messages, connection: Connection::new(config, clock), waiters, number: 0 };
            let result = worker.connection.persist(|_| Ok(()));
            let usable = result.is_ok();
            if opened.send(result).is_ok() && usable {
                runtime.block_on(worker.serve());
            }
        };
        let thread = std::thread::Builder::new().name("onelock-sqlite".into());
        thread.spawn(serve).map_err(|e| no_thread(&e))?;
        result.await.map_err(|_| ended())??;
        Ok(Self { messages: queue, limit })
    }

    /// Runs a verb in a transaction; other verbs may share it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        effect: Effect,
        run: impl FnMut(&mut Transaction<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.send(Message::Call(Box::new(Verb { effect, run, done: None, reply })))?;
        let Ok(answer) = tokio::time::timeout(self.limit, answer).await else {
            let text = format!("the disk did not answer within {} s", STALL.as_secs());
            return Err(Error::new(ErrorKind::Timeout, text));
        };
        answer.map_err(|_| ended())?
    }

    /// Waits for the grant of an entry, or until asking for it again may help.
    pub(super) async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        let (reply, answer) = oneshot::channel();
        self.send(Message::Wait(ticket.clone(), reply))?;
        answer.await.map_err(|_| ended())?
    }

    /// Ends the thread. What is still in the queue, and those that wait, get no answer.
    pub(super) async fn close(&self) {
        let (reply, done) = oneshot::channel();
        if self.messages.send(Message::Close(reply)).is_ok() {
            // An error means that another call closed it meanwhile.
            let _ = done.await;
        }
    }

    fn send(&self, message: Message) -> Result<()> {
        self.messages.send(message).map_err(|_| ended())
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Closed, "the SQLite store was closed")
}

fn no_thread(error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no thread for the SQLite store: {error}"))
}

struct Worker {
    messages: mpsc::UnboundedReceiver<Message>,
    connection: Connection,
    waiters: Waiters,
    /// The largest number given or seen.
    number: i64,
}

impl Worker {
    async fn serve(mut self) {
        loop {
            let mut message = tokio::select! {
                message = self.messages.recv() => match message {
                    Some(message) => Some(message),
                    None => return,
                },
                notified = self.waiters.due(self.connection.database.as_ref()) => {
                    self.waiters.look(&mut self.connection, notified);
                    continue;
                }
            };
            let (mut calls, mut waits) = (Vec::new(), Vec::new());
            let mut end = None;
            while let Some(next) = message {
                match next {
                    Message::Call(call) => calls.push(call),
                    Message::Wait(ticket, reply) => waits.push((Key::from(&ticket), reply)),
                    Message::Close(closed) => end = Some(closed),
                }
                let room = end.is_none() && calls.len() + waits.len() < BATCH;
                message = if room { self.messages.try_recv().ok() } else { None };
            }
            self.run(calls);
            self.waiters.add(&mut self.connection, waits);
            if let Some(closed) = end {
                // Dropped first: the file is closed when the caller gets its answer.
                drop(self);
                let _ = closed.send(());
                return;
            }
        }
    }

    /// Answers each call. When a transaction of several fails, each gets one of its own: a full disk that refuses
    /// an acquire may still take a release.
    fn run(&mut self, mut calls: Vec<Box<dyn Call>>) {
        if calls.is_empty() {
            return;
        }
        let done = self.transact(&mut calls);
        if calls.len() > 1 && done.as_ref().is_err_and(|error| !error.is_retryable()) {
            return calls.into_iter().for_each(|call| self.run(vec![call]));
        }
        let committed = done.as_ref().map(|_| ()).map_err(Clone::clone);
        calls.into_iter().for_each(|call| call.answer(committed.clone()));
        for (key, wake) in done.into_iter().flatten() {
            self.waiters.wake(&key, &Ok(wake));
        }
    }

    /// Runs the calls in one transaction; whom it woke.
    fn transact(&mut self, calls: &mut [Box<dyn Call>]) -> Result<Vec<(Key, Wake)>> {
        let reads = calls.iter().all(|call| call.effect() == Effect::Reads);
        let joins = calls.iter().any(|call| call.effect() == Effect::Joins);
        let number = self.number;
        let (number, woken) = self.connection.persist(|database| {
            database.set_full_sync(joins)?;
            let mut tx = Transaction::begin(database, reads, number)?;
            calls.iter_mut().try_for_each(|call| call.run(&mut tx))?;
            tx.commit()?;
            Ok((tx.number, tx.woken))
        })?;
        self.number = number;
        // Other processes first: theirs is the longer way.
        if woken.iter().any(|(key, _)| !self.waiters.has(key)) {
            wait::notify(&self.connection.config.path);
        }
        Ok(woken)
    }
}
