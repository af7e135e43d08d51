//! The thread that owns the connection: it takes verbs from a queue, runs all that are there in one transaction, and answers
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
use super::line::Transaction;
use super::notices::notify;
use super::wait::{Reply, Waiters};

/// How many messages are taken at most before they are answered: verbs that share a transaction share a wait for the disk, and
/// other processes get a turn in between.
const BATCH: usize = 256;

/// How long the disk may take, beside waiting for other writers, before the callers get an error that it hangs.
const STALL: Duration = Duration::from_secs(15);

/// What a verb does to the file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
    committed: oneshot::Sender<Result<()>>,
}

type Verb = dyn FnMut(&mut Transaction<'_>) -> Result<(), Fault> + Send;

enum Message {
    Call(Call),
    Wait(Ticket, Reply),
    Close,
}

/// The way to the thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Queue {
    messages: mpsc::UnboundedSender<Message>,
    /// How long a call may take.
    limit: Duration,
}

impl Queue {
    /// Opens the file on a thread of its own.
    pub(super) async fn start(config: SqliteConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let (messages, received) = mpsc::unbounded_channel();
        let queue = Self { messages, limit: config.busy_timeout + STALL };
        let connection = Connection::new(config, clock);
        let worker = Worker { connection, messages: received, waiters: Waiters::default(), number: 0 };
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
        let serve = move || runtime().map(|runtime| runtime.block_on(worker.serve()));
        let _ = std::thread::Builder::new().name("onelock-sqlite".into()).spawn(serve);
        match queue.run(Effect::Reads, |_| Ok(())).await {
            Err(error) if error.kind() == ErrorKind::Closed => {
                let text = "the thread of the SQLite store ended before the file was open: is there a limit on threads or descriptors?";
                Err(Error::new(ErrorKind::Unavailable, text))
            }
            opened => opened.map(|()| queue),
        }
    }

    /// Runs a verb in a transaction; other verbs may share it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        effect: Effect,
        mut verb: impl FnMut(&mut Transaction<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T> {
        // One for each time that it is run; the last one is what was committed.
        let (answer, answers) = std::sync::mpsc::channel();
        let verb = move |tx: &mut Transaction<'_>| {
            // A caller that went away needs no answer.
            let _ = answer.send(verb(tx)?);
            Ok(())
        };
        let (committed, commit) = oneshot::channel();
        let call = Call { effect, verb: Box::new(verb), committed };
        self.messages.send(Message::Call(call)).map_err(|_| ended())?;
        let Ok(commit) = tokio::time::timeout(self.limit, commit).await else {
            let text = format!("the disk did not answer within {} s", STALL.as_secs());
            return Err(Error::new(ErrorKind::Timeout, text));
        };
        commit.map_err(|_| ended())??;
        answers.try_iter().last().ok_or_else(ended)
    }

    /// Waits for the grant of an entry, or until asking for it again may help.
    pub(super) async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        let (reply, answer) = oneshot::channel();
        self.messages.send(Message::Wait(ticket.clone(), reply)).map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }

    /// Ends the thread. What is still in the queue, and those that wait, get no answer.
    pub(super) async fn close(&self) {
        // An error means that another call closed it meanwhile.
        let _ = self.messages.send(Message::Close);
        self.messages.closed().await;
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Closed, "the SQLite store was closed")
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
            let (mut messages, mut calls, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
            tokio::select! {
                // None come any more when the queue is gone.
                count = self.messages.recv_many(&mut messages, BATCH) => open = count > 0,
                notified = self.waiters.due(&self.connection), if !self.waiters.calls.is_empty() => {
                    self.waiters.poll(&mut self.connection, notified);
                }
            }
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
            self.waiters.answer(&mut self.connection, &waiting, false);
        }
    }

    /// Runs the calls in one transaction and answers each. When a transaction of several fails, each gets one of its own: a full
    /// disk that refuses an acquire may still take a release.
    fn run(&mut self, mut calls: Vec<Call>) {
        let Some(effect) = calls.iter().map(|call| call.effect).max() else { return };
        let done = self.connection.persist(|database| {
            // SQLite obeys this pragma when it compiles it, so it must not come out of the cache.
            let sync = if effect == Effect::Joins { "FULL" } else { "NORMAL" };
            database.sql.pragma_update(None, "synchronous", sync)?;
            let mut tx = Transaction::begin(database, effect == Effect::Reads, self.number)?;
            calls.iter_mut().try_for_each(|call| (call.verb)(&mut tx))?;
            tx.commit()
        });
        if calls.len() > 1 && done.as_ref().is_err_and(|error| !error.is_retryable()) {
            return calls.into_iter().for_each(|call| self.run(vec![call]));
        }
        let woken = done.map(|(number, woken)| {
            self.number = number;
            // Other processes first: theirs is the longer way.
            if !woken.iter().all(|holder| self.waiters.calls.contains_key(holder)) {
                notify(&self.connection.config.path);
            }
            woken
        });
        for call in calls {
            // A caller that went away needs no answer.
            let _ = call.committed.send(woken.as_ref().map(|_| ()).map_err(Clone::clone));
        }
        self.waiters.answer(&mut self.connection, &woken.unwrap_or_default(), false);
    }
}
