//! Elections: one leader at a time, judged by the work, and observers that see each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use onelock_core::client::Locks;
use onelock_core::{Election, FencingToken, Term};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::alone::Alone;
use crate::case::{Need, table};
use crate::ctx::{Ctx, patient};
use crate::faults::{Fault, Link};
use crate::runner::panic_on_purpose;
use crate::verdict::{Context as _, Stop, Verdict};
use crate::{ensure, ensure_eq};

table! {
    terms_end_in_every_way: [], [], 90;
    step_down_while_cut_off: [], [Need::Link, Need::Reconnect], 90;
    observers_outlive_a_restart: [], [Need::Restart, Need::Reconnect], 120;
}

/// How the work of a term ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TermEnd {
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
    for way in [TermEnd::StepDown, TermEnd::Error, TermEnd::Panic, TermEnd::Blocks] {
        let locks = ctx.locks_for(lease).await?;
        let (alone, began) = (Arc::clone(&alone), began.clone());
        candidates.spawn(async move {
            let election = locks.election(NAME)?.pause_after_failure(lease / 16);
            let election = election.step_down_notice(lease / 16);
            let mut terms = 0;
            let lead = |term: Term| {
                terms += 1;
                let way = if terms > 1 && way != TermEnd::Panic { TermEnd::Done } else { way };
                let (alone, began) = (Arc::clone(&alone), began.clone());
                async move {
                    let _inside = alone.enter(vec![0]);
                    let _told = began.send(term.token().ok());
                    tokio::time::sleep(lease / 16).await;
                    match way {
                        TermEnd::StepDown => {
                            term.step_down().await;
                            std::future::pending().await
                        }
                        TermEnd::Error => {}
                        TermEnd::Panic => panic_on_purpose(),
                        // Renewals go on on another thread.
                        TermEnd::Blocks => std::thread::sleep(lease * 5 / 4),
                        TermEnd::Done => return Ok(term.is_leader()),
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
