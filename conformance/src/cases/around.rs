//! What is built around the lock: sets, elections, hand-overs, least times. Exclusion is judged by the work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use onelock_core::client::Locks;
use onelock_core::client::retry::Retry;
use onelock_core::{
    Election, ErrorKind, FencingToken, HandOver, LossReason, MemoryBackend, MemoryStore, Term,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::case::{Need, table};
use crate::ctx::{Ctx, LONG, PATIENCE, name};
use crate::faults::{Fault, Link};
use crate::runner::panic_on_purpose;
use crate::verdict::{Context as _, Stop, Verdict};
use crate::worker::Worker;
use crate::{ensure, ensure_eq};

const RESUME: Need = Need::Can("resume");

table! {
    crossing_sets_all_end: [], [], 120;
    sets_are_all_or_none: [], [], 60;
    terms_end_in_every_way: [], [], 90;
    step_down_while_cut_off: [], [Need::Link, Need::Reconnect], 90;
    observers_outlive_a_restart: [], [Need::Restart, Need::Reconnect], 120;
    hand_over_survives_its_giver: [], [Need::Processes, RESUME], 90;
    used_hand_overs_are_refused: [], [RESUME], 60;
    at_least_after_a_crash: [5, 7], [Need::Processes, RESUME], 120;
}

/// Work that must be alone: how many are inside, and how many times that was more than one.
#[derive(Debug, Default)]
struct Alone([AtomicU32; NAMES], AtomicU32);

/// Somebody is inside until this is dropped.
struct Inside<'a>(&'a Alone, Vec<usize>);

impl Alone {
    fn enter(&self, which: Vec<usize>) -> Inside<'_> {
        for &i in &which {
            self.1.fetch_add(u32::from(self.0[i].fetch_add(1, Ordering::SeqCst) > 0), Ordering::SeqCst);
        }
        Inside(self, which)
    }

    fn check(&self) -> Verdict {
        ensure_eq!(self.1.load(Ordering::SeqCst), 0, "works that were not alone");
        Ok(())
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        for &i in &self.1 {
            self.0.0[i].fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// So many names do crossing sets have, and so many clients.
const NAMES: usize = 10;
const CLIENTS: u64 = 50;

/// Sets of random names in random order never wait for each other in a circle; each client gets its turns, and nothing is left.
async fn crossing_sets_all_end(ctx: &Ctx) -> Verdict {
    let (alone, mut clients, mut tasks) = (Arc::new(Alone::default()), Vec::new(), JoinSet::new());
    let backends = [ctx.backend().await?, ctx.backend().await?];
    for client in 0..CLIENTS {
        let locks = ctx.client(Arc::clone(&backends[client as usize % 2]), LONG, LONG)?;
        clients.push(locks.clone());
        let (alone, mut rng, turns) = (Arc::clone(&alone), ctx.rng(), ctx.volume(2));
        tasks.spawn(async move {
            let (mut done, mut gave_up) = (0, 0);
            while done < turns {
                let mut which: Vec<_> = (0..2 + rng.index(3)).map(|_| rng.index(NAMES)).collect();
                let lock = |i: &usize| Ok::<_, Stop>(locks.mutex(format!("set-{i}"))?.retry(patient()));
                let set = if rng.below(2) == 0 {
                    locks.all(which.iter().map(|i| format!("set-{i}")))?
                } else {
                    which.sort_unstable();
                    which.dedup();
                    // Backwards: the set puts them in order.
                    locks.all_of(which.iter().rev().map(lock).collect::<Verdict<Vec<_>>>()?)?
                };
                which.sort_unstable();
                which.dedup();
                let limit =
                    if rng.below(4) == 0 { rng.time(Duration::from_millis(20)) } else { PATIENCE * 3 };
                match set.acquire_timeout(limit).await {
                    Ok(Some(set)) => {
                        let inside = alone.enter(which);
                        tokio::task::yield_now().await;
                        drop(inside);
                        set.release().await?;
                        done += 1;
                    }
                    Err(error) if !error.is_retryable() => return Err(error.into()),
                    _ => gave_up += 1,
                }
            }
            Ok::<_, Stop>(gave_up)
        });
    }
    let all = async {
        let mut gave_up = 0;
        while let Some(done) = tasks.join_next().await {
            gave_up += done??;
        }
        Ok::<_, Stop>(gave_up)
    };
    let limit = PATIENCE * 2 * u32::try_from(ctx.volume(1))?;
    let gave_up = ctx.soon_for(limit, "every client has its turns", all).await??;
    ensure!(gave_up > 0, "no set was given up half way: the run proves nothing");
    alone.check()?;
    ctx.nothing_left(&clients).await
}

/// Never gives up for errors or lost places.
fn patient() -> Retry {
    Retry::default().errors(u32::MAX)
}

/// A set that cannot be completed gives back what it took, and one that loses a lock stops all of its work.
async fn sets_are_all_or_none(ctx: &Ctx) -> Verdict {
    let (locks, other) = (ctx.locks().await?, ctx.locks().await?);
    let set = locks.all(["all-c", "all-a", "all-b"])?;
    let free = async |text: &str| {
        ctx.soon(text, other.mutex(text)?.acquire()).await??.release().await?;
        Ok::<_, Stop>(())
    };
    let held = other.mutex("all-c")?.acquire().await?;
    ensure!(set.try_acquire().await?.is_none(), "a try of a set with a busy lock");
    free("all-a").await?;
    ensure!(set.acquire_timeout(ctx.units(1)).await?.is_none(), "a set with a busy lock");
    free("all-b").await?;
    // Dropped while it waits for the last.
    ensure!(tokio::time::timeout(ctx.units(1), set.acquire()).await.is_err(), "a set with a busy lock");
    free("all-a").await?;
    held.release().await?;

    let short = locks.mutex("all-b")?.ttl(ctx.units(3))?.auto_renew(false);
    let set = locks.all_of([locks.mutex("all-c")?, short, locks.mutex("all-a")?])?.acquire().await?;
    let alone = Alone::default();
    let inside = alone.enter(vec![0]);
    let next = async {
        let next = other.mutex("all-b")?.acquire().await?;
        drop(alone.enter(vec![0]));
        Ok::<_, Stop>(next)
    };
    let work = set.run(async {
        let _inside = inside;
        std::future::pending::<()>().await;
    });
    let (stopped, next) =
        tokio::join!(ctx.soon("the work is stopped", work), ctx.soon("the lost lock goes on", next));
    let stopped = stopped?.err().context("the work cannot end by itself")?;
    ensure!(stopped.to_string().contains("all-b"), "the lost lock is not named: {stopped}");
    alone.check()?;
    ensure_eq!(set.lost().await, (name("all-b")?, LossReason::Expired), "what was lost");
    ensure!(other.mutex("all-a")?.try_acquire().await?.is_none(), "the guards are still there");
    drop(set);
    free("all-a").await?;
    free("all-c").await?;
    next??.release().await?;
    ctx.nothing_left(&[locks, other]).await
}

/// How the work of a term ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    StepDown,
    Error,
    Panic,
    /// It works for longer than a lease without an await.
    Blocks,
    Done,
}

/// The tokens of the leaders that an observer sees, until it has seen `last`.
async fn leaders(election: Election, mut last: watch::Receiver<Option<FencingToken>>) -> Vec<FencingToken> {
    let (mut seen, mut tokens) = (election.observe(), Vec::new());
    loop {
        tokio::select! {
            leader = seen.next() => tokens.extend(leader.map(|leader| leader.token)),
            _ = last.wait_for(|last| last.is_some_and(|last| tokens.last() == Some(&last))) => return tokens,
        }
    }
}

/// Two observers of an election.
struct Observers(JoinSet<Vec<FencingToken>>, watch::Sender<Option<FencingToken>>);

impl Observers {
    async fn start(ctx: &Ctx, election: &str) -> Verdict<Self> {
        let (mut observers, (last, told)) = (JoinSet::new(), watch::channel(None));
        // Numbers of a store without fencing say nothing.
        for _ in 0..if ctx.harness().capabilities().fencing { 2 } else { 0 } {
            let election = ctx.locks().await?.election(election)?.ttl(ctx.units(3))?;
            ensure!(election.leader().await?.is_none(), "nobody campaigns");
            observers.spawn(leaders(election, told.clone()));
        }
        Ok(Self(observers, last))
    }

    /// Lets one more lead: both must see it, and what they saw before is in the order of the terms.
    async fn agree(mut self, ctx: &Ctx, locks: &Locks, election: &str) -> Verdict {
        let lock = locks.mutex(election)?.retry(patient());
        let last = ctx.soon("the last one leads", lock.acquire()).await??;
        self.1.send_replace(last.token().ok());
        while let Some(seen) = ctx.soon("the last leader is seen", self.0.join_next()).await? {
            let seen = seen?;
            ensure!(seen.is_sorted_by(|a, b| a < b), "leaders as they were seen: {seen:?}");
        }
        last.release().await?;
        Ok(())
    }
}

/// Candidates whose work is done, fails, panics, steps down or does not await for longer than the lease: the others lead
/// after it, never beside it.
async fn terms_end_in_every_way(ctx: &Ctx) -> Verdict {
    const NAME: &str = "lead-ways";
    let (lease, alone, observers) =
        (ctx.units(5), Arc::new(Alone::default()), Observers::start(ctx, NAME).await?);
    let (began, mut begun) = mpsc::unbounded_channel();
    let mut candidates = JoinSet::new();
    for way in [Way::StepDown, Way::Error, Way::Panic, Way::Blocks] {
        let locks = ctx.locks_for(lease).await?;
        let (alone, began) = (Arc::clone(&alone), began.clone());
        candidates.spawn(async move {
            let election = locks.election(NAME)?.pause_after_failure(lease / 16);
            let election = election.step_down_notice(lease / 16);
            let mut terms = 0;
            let lead = |term: Term| {
                terms += 1;
                let way = if terms > 1 && way != Way::Panic { Way::Done } else { way };
                let (alone, began) = (Arc::clone(&alone), began.clone());
                async move {
                    let _inside = alone.enter(vec![0]);
                    let _told = began.send(term.token().ok());
                    tokio::time::sleep(lease / 16).await;
                    match way {
                        Way::StepDown => {
                            term.step_down().await;
                            std::future::pending().await
                        }
                        Way::Error => {}
                        Way::Panic => panic_on_purpose(),
                        // Renewals go on on another thread.
                        Way::Blocks => std::thread::sleep(lease * 5 / 4),
                        Way::Done => return Ok(term.is_leader()),
                    }
                    Err("on purpose")
                }
            };
            let led = election.run(lead).await?;
            Ok::<_, Stop>((locks, led))
        });
    }
    let (mut clients, mut panics) = (Vec::new(), 0);
    while let Some(ended) = ctx.soon("the candidates end", candidates.join_next()).await? {
        match ended {
            Err(error) if error.is_panic() => panics += 1,
            ended => {
                let (locks, led) = ended??;
                ensure!(led, "done by one who did not lead any more");
                clients.push(locks);
            }
        }
    }
    ensure_eq!((clients.len(), panics), (3, 1), "candidates that ended by themselves, and by a panic");
    alone.check()?;
    begun.close();
    let mut terms = Vec::new();
    while let Some(token) = begun.recv().await {
        terms.push(token);
    }
    ensure!(terms.len() >= 7, "only {} terms", terms.len());
    let fencing = ctx.harness().capabilities().fencing;
    ensure!(!fencing || terms.is_sorted_by(|a, b| a < b), "tokens of terms: {terms:?}");
    observers.agree(ctx, &clients[0], NAME).await?;
    ctx.nothing_left(&clients).await
}

/// A leader that is cut off from the store and steps down has ended its work before the next one leads, and leads again once
/// it is back.
async fn step_down_while_cut_off(ctx: &Ctx) -> Verdict {
    const NAME: &str = "lead-cut";
    let (lease, link, alone) = (ctx.units(3), Link::new(), Arc::new(Alone::default()));
    let (locks, other) = (ctx.locks_by(&link, lease, lease).await?, ctx.locks_for(lease).await?);
    let (led, mut leads) = mpsc::unbounded_channel();
    let election = locks.election(NAME)?.pause_after_failure(Duration::ZERO);
    let candidate = async {
        let lead = |term| {
            let (alone, led) = (Arc::clone(&alone), led.clone());
            async move {
                let _inside = alone.enter(vec![0]);
                let _told = led.send(term);
                std::future::pending::<Result<(), Stop>>().await
            }
        };
        election.run(lead).await.err().map_or(Ok(()), |error| Err(Stop::from(error)))
    };
    let faults = async {
        let term = ctx.soon("it leads", leads.recv()).await?.context("a term")?;
        let first = term.token().ok();
        link.set(Fault::Stall);
        let next = async {
            let guard = other.mutex(NAME)?.acquire().await?;
            drop(alone.enter(vec![0]));
            Ok::<_, Stop>(guard)
        };
        let stepped = ctx.soon("the step-down ends the term", term.step_down());
        let (stepped, next) = tokio::join!(stepped, ctx.soon("the next one leads", next));
        stepped?;
        ensure!(!term.is_leader(), "it leads although it has stepped down");
        alone.check()?;
        link.heal();
        next??.release().await?;
        let again = ctx.soon("it leads again", leads.recv()).await?.context("a second term")?;
        ensure!(again.is_leader() && again.token().ok() >= first, "a term of before");
        Ok(())
    };
    tokio::select! {
        ended = candidate => ended.and_then(|()| Err(Stop::failed("the candidate has ended"))),
        done = faults => done,
    }?;
    ctx.nothing_left(&[locks, other]).await
}

/// Leaders change over a restart of the store, none beside another, and its observers do not miss the last one.
async fn observers_outlive_a_restart(ctx: &Ctx) -> Verdict {
    const NAME: &str = "lead-restart";
    let (lease, alone, observers) = (ctx.units(3), Alone::default(), Observers::start(ctx, NAME).await?);
    let (a, b) = (ctx.locks_for(lease).await?, ctx.locks_for(lease).await?);
    let terms = AtomicU32::new(0);
    let campaign = async |locks: &Locks| {
        let lead = |_| async {
            let _inside = alone.enter(vec![0]);
            terms.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(lease / 8).await;
            Err::<(), _>("and again")
        };
        locks.election(NAME)?.pause_after_failure(lease / 32).run(lead).await?;
        Ok::<_, Stop>(())
    };
    let more = async || {
        let before = terms.load(Ordering::SeqCst);
        ctx.eventually("more terms", async || Ok((terms.load(Ordering::SeqCst) >= before + 4).then_some(())))
            .await
    };
    tokio::select! {
        ended = campaign(&a) => ended,
        ended = campaign(&b) => ended,
        done = async {
            more().await?;
            ctx.store().restart().await?;
            more().await
        } => done,
    }?;
    alone.check()?;
    observers.agree(ctx, &a, NAME).await
}

/// When a giver is killed.
#[derive(Clone, Copy, Debug)]
enum Killed {
    BeforeItHasGiven,
    Before,
    During,
    After,
}

/// A lock that was handed over outlives its giver, whenever that is killed, and is not free in between; one that was not
/// comes free.
async fn hand_over_survives_its_giver(ctx: &Ctx) -> Verdict {
    let (locks, other) = (ctx.locks().await?, ctx.locks().await?);
    let all = [Killed::BeforeItHasGiven, Killed::Before, Killed::During, Killed::After];
    try_join_all(all.map(|killed| giver(ctx, killed, &locks, &other))).await?;
    ctx.nothing_left(&[locks, other]).await
}

async fn giver(ctx: &Ctx, killed: Killed, locks: &Locks, other: &Locks) -> Verdict {
    let text = format!("hand-{killed:?}");
    let mut worker = Worker::start(ctx, ctx.units(5))?;
    let (token, _) = worker.acquire(&text).await?;
    let lock = other.mutex(&text)?;
    let next = tokio::spawn(async move { lock.acquire().await });
    if ctx.shows_the_line() {
        ctx.until_line_has(other.backend(), &name(&text)?, 2).await?;
    }
    worker.send(&format!("hand {text}")).await?;
    if matches!(killed, Killed::BeforeItHasGiven) {
        worker.kill().await?;
    } else {
        let given: HandOver = worker.answer().await?.parse()?;
        let guard = match killed {
            Killed::During => {
                let (dead, guard) = tokio::join!(worker.kill(), locks.resume(given));
                dead?;
                guard?
            }
            Killed::After => {
                let guard = locks.resume(given).await?;
                worker.kill().await?;
                guard
            }
            _ => {
                worker.kill().await?;
                locks.resume(given).await?
            }
        };
        ensure_eq!(guard.token()?.get(), token, "the token of what was handed over");
        let over = ctx.now() + guard.ttl();
        let renewed = async || Ok((guard.deadline() > over).then_some(()));
        ctx.eventually("it is renewed", renewed).await?;
        ensure!(guard.is_held() && !next.is_finished(), "{killed:?}: two hold");
        guard.release().await?;
    }
    let next = ctx.soon("the next one holds", next).await???;
    ensure!(next.token()?.get() > token, "token {} after {token}", next.token()?);
    Ok(next.release().await?)
}

/// A hand-over that was used, has expired, was changed or is of another store is refused with its reason, and hurts nobody.
async fn used_hand_overs_are_refused(ctx: &Ctx) -> Verdict {
    const NAME: &str = "handed-once";
    let (a, b) = (ctx.locks_for(ctx.units(3)).await?, ctx.locks().await?);
    let refused = async |given: &HandOver| {
        for locks in [&a, &b] {
            let error = locks.resume(given.clone()).await.err().context("a second holder")?;
            ensure_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(LossReason::NotHeld)), "{error}");
        }
        Ok::<_, Stop>(())
    };
    let given = a.mutex(NAME)?.acquire().await?.hand_over().await?;
    let both = tokio::join!(a.resume(given.clone()), b.resume(given.clone()));
    let guard = match both {
        (Ok(guard), Err(error)) | (Err(error), Ok(guard)) => {
            ensure_eq!(error.kind(), ErrorKind::Lost, "{error}");
            guard
        }
        both => return Err(Stop::failed(format!("two that resume: {both:?}"))),
    };
    refused(&given).await?;
    ensure!(guard.is_held() && b.mutex(NAME)?.try_acquire().await?.is_none(), "the holder was hurt");
    guard.release().await?;

    let given = a.mutex(NAME)?.acquire().await?.hand_over().await?;
    let text = String::from(given.clone());
    for i in 0..text.len() {
        let mut changed = text.clone().into_bytes();
        changed[i] ^= 1;
        let read = String::from_utf8(changed)?.parse::<HandOver>();
        ensure_eq!(read.err().map(|error| error.kind()), Some(ErrorKind::Foreign), "byte {i}");
    }
    let next = ctx.soon("it has expired", b.mutex(NAME)?.acquire()).await??;
    refused(&given).await?;
    let elsewhere = Arc::new(MemoryBackend::new(&MemoryStore::new(ctx.clock())));
    let elsewhere = ctx.client(elsewhere, LONG, LONG)?;
    refused(&elsewhere.mutex(NAME)?.acquire().await?.hand_over().await?).await?;
    ensure!(next.is_held(), "the holder was hurt");
    next.release().await?;
    ctx.nothing_left(&[a, b]).await
}

/// A lock with a least time stays taken for it when its holder is killed, and when the holder has released it and is killed then.
async fn at_least_after_a_crash(ctx: &Ctx) -> Verdict {
    let locks = ctx.locks().await?;
    let one = async |released: bool| {
        let (text, least) = (format!("least-{released}"), ctx.units(6));
        let mut worker = Worker::start(ctx, ctx.units(2))?;
        let asked = ctx.now();
        worker.send(&format!("least {text} {}", least.as_millis())).await?;
        let (token, _) = worker.acquired().await?;
        if released {
            worker.send(&format!("release {text}")).await?;
            ensure_eq!(worker.answer().await?, "released", "its release");
        }
        worker.kill().await?;
        let next = ctx.soon("the least time is over", locks.mutex(&text)?.acquire()).await??;
        let stayed = ctx.now().saturating_since(asked) + locks.capabilities().granularity;
        ensure!(stayed >= least, "released: {released}; it stayed for {stayed:?} of {least:?}");
        ensure!(next.token()?.get() > token, "token {} after {token}", next.token()?);
        Ok(next.release().await?)
    };
    tokio::try_join!(one(false), one(true))?;
    ctx.nothing_left(&[locks]).await
}
