//! The thread that owns the connection: it takes verbs from a queue, runs all that are waiting in one transaction,
//! and hears of what other processes did while somebody waits.
//!
//! A thread of our own, because SQLite blocks by nature and because a verb must not be cut half way: dropping the
//! future of a call only drops its answer. Nothing here needs the caller's runtime, so its end hurts nobody.

mod waiting;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onelock_core::{
    Clock, Error, ErrorKind, FencingToken, Listing, LockName, Raise, Release, Renewal, Renewed, Request,
    Result, Snapshot, Standing, Ticket, Wake,
};
use tokio::sync::{mpsc, oneshot};

use super::config::SqliteConfig;
use super::error::Fault;
use super::open::{Nap, Store};
use super::queue;
use super::step::Step;
use super::turn::Turns;

/// How many verbs share a transaction at most: joining them saves a disk sync each, and other processes get a turn
/// in between.
const BATCH: usize = 256;

/// How long the disk may take, beside waiting for other writers, before the callers are told that it hangs.
const STALL: Duration = Duration::from_secs(15);

/// What a caller asks for.
#[derive(Debug)]
pub(super) enum Verb {
    Acquire(Request),
    Renew(Vec<Renewal>),
    Release(Ticket),
    Raise(Ticket, FencingToken),
    Inspect(LockName),
    List { prefix: String, after: String, limit: usize },
    Evict(LockName, FencingToken),
}

/// The answer to it.
pub(super) enum Answer {
    Standing(Standing),
    Wake(Wake),
    Renewed(Vec<Result<Renewed>>),
    Release(Release),
    Raise(Raise),
    Snapshot(Snapshot),
    Listing(Listing),
}

pub(super) type Reply = oneshot::Sender<Result<Answer>>;

/// What goes through the queue.
pub(super) enum Message {
    Call(Verb, Reply),
    Wait(Ticket, Reply),
    Close(oneshot::Sender<()>),
}

/// What a transaction did: for each call its answer, and the entries whose watchers are to be woken.
struct Done {
    answers: Vec<Result<Answer>>,
    promoted: Vec<i64>,
    gone: Vec<i64>,
}

/// Opens the file on a thread of its own and serves what comes through the returned queue. The thread ends when the
/// queue is dropped.
pub(super) async fn start(
    config: SqliteConfig,
    clock: Arc<dyn Clock>,
) -> Result<mpsc::UnboundedSender<Message>> {
    let (queue, messages) = mpsc::unbounded_channel();
    let (opened, result) = oneshot::channel();
    let serve = move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(e) => {
                let _ = opened.send(Err(failed("no runtime for the SQLite thread", &e)));
                return;
            }
        };
        runtime.block_on(async {
            let mut worker = Worker::new(config, clock, messages);
            let deadline = Instant::now() + worker.config.busy_timeout;
            let result = worker.persist(deadline, async |this| this.open().await.map(|_| ())).await;
            let failed = result.is_err();
            if opened.send(result).is_ok() && !failed {
                worker.run().await;
            }
        });
    };
    std::thread::Builder::new()
        .name("onelock-sqlite".into())
        .spawn(serve)
        .map_err(|e| failed("no thread for the SQLite store", &e))?;
    result
        .await
        .map_err(|_| Error::new(ErrorKind::Unavailable, "the SQLite thread ended while opening"))??;
    Ok(queue)
}

fn failed(text: &str, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{text}: {error}"))
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.let_go();
    }
}

struct Worker {
    config: SqliteConfig,
    clock: Arc<dyn Clock>,
    messages: mpsc::UnboundedReceiver<Message>,
    turns: Turns,
    /// None after the file or the connection was lost, until the next verb.
    store: Option<Store>,
    /// The largest number given or seen.
    number: i64,
    /// Whether the disk was full at the last write.
    was_full: bool,
    /// By the number of the entry. Most entries have one waiting call; one that was dropped and made anew has two.
    watchers: HashMap<i64, Vec<Reply>>,
    /// `PRAGMA data_version` of the last look: it changes with every commit of another connection.
    seen: Option<i64>,
    next_look: Instant,
    pause: Duration,
}

impl Worker {
    fn new(config: SqliteConfig, clock: Arc<dyn Clock>, messages: mpsc::UnboundedReceiver<Message>) -> Self {
        Self {
            turns: Turns::of(&config.path),
            config,
            clock,
            messages,
            store: None,
            number: 0,
            was_full: false,
            watchers: HashMap::new(),
            seen: None,
            next_look: Instant::now(),
            pause: Duration::ZERO,
        }
    }

    async fn run(mut self) {
        loop {
            if !self.watchers.is_empty() && Instant::now() >= self.next_look {
                self.look(false).await;
            }
            let (look_at, waited_for) = (self.next_look.into(), !self.watchers.is_empty());
            let message = tokio::select! {
                message = self.messages.recv() => message,
                () = waiting::told(self.store.as_mut()), if waited_for => {
                    self.look(true).await;
                    continue;
                }
                () = tokio::time::sleep_until(look_at), if waited_for => continue,
            };
            let (mut calls, mut waits) = (Vec::new(), Vec::new());
            let mut end = None;
            let mut message = message.map_or(Some(Message::Close(oneshot::channel().0)), Some);
            while let Some(next) = message {
                match next {
                    Message::Call(verb, reply) => calls.push((verb, reply)),
                    Message::Wait(ticket, reply) => waits.push((ticket, reply)),
                    Message::Close(closed) => {
                        end = Some(closed);
                        break;
                    }
                }
                let room = calls.len() + waits.len() < BATCH;
                message = if room { self.messages.try_recv().ok() } else { None };
            }
            self.serve(calls).await;
            self.wait(waits).await;
            if let Some(closed) = end {
                return self.close(closed).await;
            }
        }
    }

    /// Ends the connection; the calls still in the queue and the watchers learn that from their dropped replies.
    async fn close(mut self, closed: oneshot::Sender<()>) {
        self.messages.close();
        if let Some(store) = self.store.take() {
            store.close().await;
        }
        let _ = closed.send(());
    }

    /// Answers each call. When a transaction of several fails, each gets one of its own: a full disk that refuses
    /// an acquire may still take a release.
    async fn serve(&mut self, calls: Vec<(Verb, Reply)>) {
        let mut rounds = VecDeque::from([calls]);
        while let Some(mut calls) = rounds.pop_front() {
            // Nobody would give back what a caller who went away gets.
            calls.retain(|(verb, reply)| {
                matches!(verb, Verb::Release(_) | Verb::Evict(..)) || !reply.is_closed()
            });
            if calls.is_empty() {
                continue;
            }
            match self.transact(&calls).await {
                Ok(done) => self.finish(calls, done),
                Err(error) if calls.len() > 1 && !error.is_retryable() => {
                    rounds.extend(calls.into_iter().map(|call| vec![call]));
                }
                Err(error) => {
                    for (_, reply) in calls {
                        let _ = reply.send(Err(error.clone()));
                    }
                }
            }
        }
    }

    fn finish(&mut self, calls: Vec<(Verb, Reply)>, done: Done) {
        for ((_, reply), answer) in calls.into_iter().zip(done.answers) {
            // A caller that went away needs no answer.
            let _ = reply.send(answer);
        }
        for number in done.promoted {
            if let Ok(token) = FencingToken::new(number) {
                self.wake(number, Wake::Held(token));
            }
        }
        for number in done.gone {
            self.wake(number, Wake::Ask);
        }
    }

    /// Runs the verbs in one transaction.
    async fn transact(&mut self, calls: &[(Verb, Reply)]) -> Result<Done> {
        if self.was_full {
            // There may be room again: before the log takes it, fold the log.
            self.fold_log().await;
        }
        let deadline = Instant::now() + self.config.busy_timeout;
        let turns = self.turns.clone();
        let _turn = turns.take(deadline).await;
        self.persist(deadline, async |this| this.attempt(calls).await).await
    }

    /// Tries until it succeeds, waiting for other writers until then.
    async fn persist<T>(
        &mut self,
        deadline: Instant,
        attempt: impl AsyncFn(&mut Self) -> Result<T, Fault>,
    ) -> Result<T> {
        let (mut place, mut nap) = (None, Nap::default());
        let mut folded = false;
        loop {
            let fault = match tokio::time::timeout(STALL, attempt(self)).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(fault)) => fault,
                Err(_) => {
                    self.let_go();
                    let text = format!("the disk did not answer within {} s", STALL.as_secs());
                    return Err(Error::new(ErrorKind::Timeout, text));
                }
            };
            let usable = match &mut self.store {
                Some(store) => store.roll_back().await && store.check_same().is_ok(),
                None => true,
            };
            if !usable {
                self.let_go();
            }
            if fault.is_full() && !folded {
                // The log may have grown although most of it could go: a release must not fail for that.
                folded = true;
                self.fold_log().await;
            } else if !fault.is_busy() || Instant::now() >= deadline {
                return Err(fault.into_error());
            } else if place.is_none() {
                place = queue::enter(&self.config.path, deadline).await;
                if place.is_none() {
                    nap.take(Nap::LONG);
                }
            } else {
                nap.take(Nap::SHORT);
            }
        }
    }

    /// The file, opened again where it was lost.
    async fn open(&mut self) -> Result<&mut Store, Fault> {
        Ok(match &mut self.store {
            Some(store) => store,
            none => {
                self.seen = None;
                none.insert(Store::open(&self.config.path, &self.clock).await?)
            }
        })
    }

    /// Drops the connection; the next verb opens the file again.
    fn let_go(&mut self) {
        if let Some(store) = self.store.take() {
            store.let_go();
        }
    }

    /// Moves the write-ahead log into the file and gives its space back, as far as that can be done now.
    async fn fold_log(&mut self) {
        if let Some(store) = &mut self.store {
            let fold = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut store.conn);
            // Where it does not work there is no room yet, and the next write says so.
            self.was_full = !matches!(tokio::time::timeout(STALL, fold).await, Ok(Ok(_)));
        }
    }

    async fn attempt(&mut self, calls: &[(Verb, Reply)]) -> Result<Done, Fault> {
        let number = self.number;
        let store = self.open().await?;
        // What joins a line takes a number that must never be given twice, so it is on the disk before it is
        // answered. All else may be lost with the power: it comes back as an entry of an earlier boot, and those
        // are dropped.
        let full = calls.iter().any(|(verb, _)| matches!(verb, Verb::Acquire(_) | Verb::Raise(..)));
        store.set_full_sync(full).await?;
        let now = store.now();
        let mut step = None;
        if calls.iter().all(|(verb, _)| matches!(verb, Verb::Inspect(_) | Verb::List { .. })) {
            step = Step::begin_reading(&mut store.conn, now, &store.boot).await?;
        }
        let mut step = match step {
            Some(step) => step,
            None => Step::begin(&mut store.conn, now, &store.boot, number, store.knows_boot).await?,
        };
        let mut answers = Vec::with_capacity(calls.len());
        for (verb, _) in calls {
            answers.push(match run(&mut step, verb).await {
                Ok(answer) => Ok(answer),
                Err(Fault::Verb(error)) => Err(error),
                Err(fault) => return Err(fault),
            });
        }
        // Before the commit: nothing is written to a file that others do not see.
        store.opened.check()?;
        step.commit().await?;
        let (number, promoted, mut gone, left) = (step.number, step.promoted, step.gone, step.left);
        store.knows_boot = true;
        // Told first: theirs is the longer way. What its own client gave back nobody else waits for.
        let theirs = promoted.iter().chain(&gone).any(|number| !self.watchers.contains_key(number));
        if let (true, Some(store)) = (theirs, &self.store) {
            store.ring();
        }
        self.number = number;
        gone.extend(left);
        Ok(Done { answers, promoted, gone })
    }
}

async fn run(step: &mut Step<'_>, verb: &Verb) -> Result<Answer, Fault> {
    Ok(match verb {
        Verb::Acquire(request) => Answer::Standing(step.acquire(request).await?),
        Verb::Release(ticket) => Answer::Release(step.release(ticket).await?),
        Verb::Raise(ticket, token) => Answer::Raise(step.raise(ticket, *token).await?),
        Verb::Inspect(name) => Answer::Snapshot(step.inspect(name).await?),
        Verb::Evict(name, token) => Answer::Release(step.evict(name, *token).await?),
        Verb::List { prefix, after, limit } => Answer::Listing(step.list(prefix, after, *limit).await?),
        Verb::Renew(due) => Answer::Renewed(step.renew_all(due).await?),
    })
}
