//! The thread that owns the connection: it takes verbs from a queue, runs all that are there in one transaction, and answers
//! those that wait.
//!
//! A thread of our own, because SQLite blocks by nature and because a verb must not be cut half way: dropping the
//! future of a call only drops its answer. Nothing here needs the caller's runtime, so its end hurts nobody.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::toolkit::Lines;
use onelock_core::{Clock, Error, ErrorKind, HolderId, LockName, Result, Ticket, Timestamp, Wake};
use tokio::sync::{mpsc, oneshot};

use super::config::SqliteConfig;
use super::connection::Connection;
use super::error::Fault;
use super::line::Transaction;
use super::wait::{self, Waiters};

/// How many messages are taken at most before they are answered: verbs that share a transaction share a wait for the disk, and
/// other processes get a turn in between.
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

/// A verb: run in a transaction, again where that is tried again, and answered after the commit.
struct Call {
    effect: Effect,
    verb: Box<Verb>,
}

type Verb = dyn FnMut(Step<'_, '_>) -> Result<(), Fault> + Send;

enum Step<'t, 'c> {
    Run(&'t mut Transaction<'c>),
    Answer(Result<()>),
}

enum Message {
    Call(Call),
    Wait(Ticket, wait::Reply),
    Close,
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
        let (opened, result) = oneshot::channel::<Result<()>>();
        let limit = config.busy_timeout + STALL;
        let waiters = Waiters::new(config.poll);
        let mut worker = Worker { connection: Connection::new(config, clock), messages, waiters, number: 0 };
        let open = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|e| no_thread(&e))?;
            worker.connection.persist(|_| Ok(()))?;
            Ok((runtime, worker))
        };
        let serve = move || match open() {
            Err(error) => drop(opened.send(Err(error))),
            Ok((runtime, worker)) => {
                // Else its caller went away.
                if opened.send(Ok(())).is_ok() {
                    runtime.block_on(worker.serve());
                }
            }
        };
        let thread = std::thread::Builder::new().name("onelock-sqlite".into());
        thread.spawn(serve).map_err(|e| no_thread(&e))?;
        result.await.map_err(|_| ended())??;
        Ok(Self { messages: queue, limit })
    }

    /// Runs a verb on the line of a name; see [`Queue::run`].
    pub(super) async fn step<T: Send + 'static>(
        &self,
        effect: Effect,
        name: &LockName,
        mut verb: impl FnMut(&mut Lines, Timestamp) -> T + Send + 'static,
    ) -> Result<T> {
        let name = name.clone();
        self.run(effect, move |tx| tx.step(&name, &mut verb)).await
    }

    /// Runs a verb in a transaction; other verbs may share it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        effect: Effect,
        mut verb: impl FnMut(&mut Transaction<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let (mut reply, mut done) = (Some(reply), Err(ended()));
        let step = move |step: Step<'_, '_>| {
            match step {
                Step::Run(tx) => {
                    done = match verb(tx) {
                        Err(Fault::Verb(error)) => Err(error),
                        answer => Ok(answer?),
                    }
                }
                Step::Answer(committed) => {
                    let done = std::mem::replace(&mut done, Err(ended()));
                    // A caller that went away needs no answer.
                    let _ = reply.take().map(|reply| reply.send(committed.and(done)));
                }
            }
            Ok(())
        };
        self.send(Message::Call(Call { effect, verb: Box::new(step) }))?;
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
        // An error means that another call closed it meanwhile.
        let _ = self.messages.send(Message::Close);
        self.messages.closed().await;
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
    /// Before the messages, so that it is dropped first: the file is closed when a caller learns that the thread has ended.
    connection: Connection,
    messages: mpsc::UnboundedReceiver<Message>,
    waiters: Waiters,
    /// The largest number given or seen.
    number: i64,
}

impl Worker {
    async fn serve(mut self) {
        let mut open = true;
        while open {
            let mut messages = Vec::new();
            tokio::select! {
                _ = self.messages.recv_many(&mut messages, BATCH) => {}
                notified = self.waiters.due(self.connection.database.as_ref()) => {
                    self.waiters.poll(&mut self.connection, notified);
                    continue;
                }
            }
            // None come any more when the queue is gone.
            open = !messages.is_empty();
            let (mut calls, mut waiting) = (Vec::new(), Vec::new());
            for message in messages {
                match message {
                    Message::Call(call) => calls.push(call),
                    Message::Wait(ticket, reply) => {
                        waiting.push(ticket.holder);
                        self.waiters.add(ticket, reply);
                    }
                    Message::Close => open = false,
                }
            }
            self.run(calls);
            self.waiters.answer(&mut self.connection, &waiting);
        }
    }

    /// Answers each call. When a transaction of several fails, each gets one of its own: a full disk that refuses
    /// an acquire may still take a release.
    fn run(&mut self, mut calls: Vec<Call>) {
        if calls.is_empty() {
            return;
        }
        let done = self.transact(&mut calls);
        if calls.len() > 1 && done.as_ref().is_err_and(|error| !error.is_retryable()) {
            return calls.into_iter().for_each(|call| self.run(vec![call]));
        }
        for mut call in calls {
            // It does not fail to answer.
            let _ = (call.verb)(Step::Answer(done.as_ref().map(|_| ()).map_err(Clone::clone)));
        }
        self.waiters.answer(&mut self.connection, &done.unwrap_or_default());
    }

    /// Runs the calls in one transaction; whose waits it may have ended.
    fn transact(&mut self, calls: &mut [Call]) -> Result<Vec<HolderId>> {
        let reads = calls.iter().all(|call| call.effect == Effect::Reads);
        let joins = calls.iter().any(|call| call.effect == Effect::Joins);
        let number = self.number;
        let (number, woken) = self.connection.persist(|database| {
            database.set_full_sync(joins)?;
            let mut tx = Transaction::begin(database, reads, number)?;
            calls.iter_mut().try_for_each(|call| (call.verb)(Step::Run(&mut tx)))?;
            tx.commit()
        })?;
        self.number = number;
        // Other processes first: theirs is the longer way.
        if !woken.iter().all(|holder| self.waiters.has(*holder)) {
            wait::notify(&self.connection.config.path);
        }
        Ok(woken)
    }
}
