//! The line: who holds, in which order, and who is woken.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Backend, FencingToken, LockName, Mode, Release, Renewed, Request, Standing, Wake};

use crate::case::{Need, table};
use crate::ctx::{Ctx, Entry, exclusive, joined, name, renew, renewal, request, ticket};
use crate::verdict::{Context as _, Stop, Verdict};
use crate::{ensure, ensure_eq, expect, fail};

table! {
    fifo_order: [3], [Need::Can("fifo")], 30;
    shared_admission: [3], [Need::Line, Need::Can("shared")], 20;
    permit_admission: [3], [Need::Line, Need::Can("permits")], 20;
    permit_weights: [3], [Need::Line, Need::Can("permits")], 60;
    mixed_modes: [3], [Need::Line, Need::Can("shared"), Need::Can("permits")], 20;
    random_lines_follow_the_specification: [3], [Need::Line], 60;
    early_wake_is_kept: [9], [Need::Can("fifo")], 60;
    evicted_waiter_never_holds: [9, 11], [Need::Line], 60;
    only_the_promoted_are_woken: [10], [Need::Can("fifo"), Need::Can("push")], 60;
}

/// Exclusive entries hold one after the other, in the order they joined.
async fn fifo_order(ctx: &Ctx) -> Verdict {
    let clients = [ctx.backend().await?, ctx.backend().await?, ctx.backend().await?];
    let name = name("queue")?;
    let mut line = vec![Entry::holding(&clients[0], exclusive(&name)?).await?];
    for i in 1..12 {
        line.push(Entry::waiting(&clients[i % 3], exclusive(&name)?).await?);
    }
    let mut numbers: Vec<_> = line.iter().filter_map(|entry| entry.token).collect();
    ensure!(numbers.is_sorted_by(|a, b| a < b), "numbers do not grow along the line");
    numbers.clear();
    for i in 0..line.len() {
        for (j, entry) in line.iter().enumerate().skip(i) {
            if j == i && entry.token.is_none() {
                // The server itself promotes it, and may show it as waiting until its thread runs.
                let holds = async || Ok(entry.holds().await?.then_some(()));
                ctx.eventually("the next one holds", holds).await?;
            }
            let answer = entry.renew().await?;
            if let Renewed::Held(grant) = answer {
                ensure_eq!(grant.token, entry.token.unwrap_or(grant.token), "the number of entry {j}");
                numbers.push(grant.token);
            }
            let holds = matches!(answer, Renewed::Held(_));
            ensure_eq!(holds, j == i, "whether entry {j} holds when {i} are gone");
        }
        line[i].release().await?;
    }
    ensure!(numbers.is_sorted_by(|a, b| a < b), "numbers do not grow from holder to holder");
    Ok(())
}

/// A line under test, entry by entry.
struct Entries<'a> {
    backend: &'a Arc<dyn Backend>,
    name: LockName,
    all: Vec<(Request, FencingToken)>,
}

impl<'a> Entries<'a> {
    fn new(backend: &'a Arc<dyn Backend>, text: &str) -> Verdict<Self> {
        Ok(Self { backend, name: name(text)?, all: Vec::new() })
    }

    async fn join(&mut self, mode: Mode) -> Verdict<bool> {
        let request = request(&self.name, mode)?;
        let (holds, token) = joined(self.backend.acquire(&request).await?)?;
        self.all.push((request, token));
        Ok(holds)
    }

    /// Joins in these modes: those before the bar hold at once, those behind it wait.
    async fn join_all(&mut self, modes: &str) -> Verdict {
        let (holding, waiting) = modes.split_once(" | ").unwrap_or((modes, ""));
        for (modes, holds) in [(holding, true), (waiting, false)] {
            for mode in modes.split_whitespace() {
                let i = self.all.len();
                ensure_eq!(self.join(mode.parse()?).await?, holds, "whether entry {i}, {mode}, holds");
            }
        }
        Ok(())
    }

    async fn leave(&mut self, i: usize) -> Verdict {
        let (request, token) = self.all.remove(i);
        self.backend.release(&ticket(&request, token)).await?;
        Ok(())
    }

    /// Checks what renewals and `inspect` say against the one rule.
    async fn check(&self, what: &str) -> Verdict {
        let wanted = onelock_core::mode::holders(self.all.iter().map(|(request, _)| request.mode));
        let line: Vec<_> = self.all.iter().map(|(request, _)| request.mode.to_string()).collect();
        for (i, (request, token)) in self.all.iter().enumerate() {
            let holds = match renew(self.backend, renewal(request, *token)).await? {
                Renewed::Held(grant) => {
                    ensure_eq!(grant.token, *token, "{what}: the token of entry {i} of {line:?}");
                    true
                }
                Renewed::Waiting(place) => {
                    ensure_eq!(place.token, Some(*token), "{what}: the number of entry {i} of {line:?}");
                    false
                }
                Renewed::NotHeld => {
                    fail!("{what}: entry {i} of {line:?} is gone");
                }
            };
            ensure_eq!(holds, i < wanted, "{what}: whether entry {i} of {line:?} holds");
        }
        let shown = self.backend.inspect(&self.name).await?;
        let shown: Vec<_> = [shown.holders, shown.waiters]
            .map(|part| part.into_iter().map(|e| (e.mode, e.token)).collect::<Vec<_>>())
            .into();
        let all: Vec<_> = self.all.iter().map(|(request, token)| (request.mode, *token)).collect();
        let (holders, waiters) = all.split_at(wanted);
        ensure_eq!(shown, [holders.to_vec(), waiters.to_vec()], "{what}: what is shown of {line:?}");
        Ok(())
    }
}

/// Readers hold together; a writer waits for all of them, and readers behind it wait for the writer.
async fn shared_admission(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let mut line = Entries::new(&backend, "readers")?;
    line.join_all("s s | x s s").await?;
    line.check("a writer waits").await?;
    line.leave(0).await?;
    line.check("one reader gone").await?;
    line.leave(0).await?;
    line.check("both readers gone").await?;
    line.leave(0).await?;
    line.check("the writer gone").await
}

/// As many permits hold as the semaphore has, and nobody who waits is passed.
async fn permit_admission(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let mut line = Entries::new(&backend, "permits")?;
    line.join_all("p3 p3 p3 | p3 p2 p3").await?;
    line.check("full").await?;
    line.leave(1).await?;
    line.check("one back").await?;
    line.leave(0).await?;
    line.check("two back: the smaller limit is not passed").await?;
    line.leave(0).await?;
    line.leave(0).await?;
    line.check("the smaller limit").await?;
    line.leave(0).await?;
    line.check("the last").await
}

/// Permits hold while the sum of their weights is at most the smallest limit among them, also while the limit is being changed;
/// and whoever waits for that is told.
async fn permit_weights(ctx: &Ctx) -> Verdict {
    let (backend, other) = (ctx.backend().await?, ctx.backend().await?);
    let mut line = Entries::new(&backend, "weights")?;
    line.join_all("p5w2 p5w2 | p5w2 p5 p3w3 p5 p7w6 p3").await?;
    line.check("five are taken in part").await?;
    for gone in ["a weight of 2", "2 more", "the third", "the smallest limit", "both limits"] {
        line.leave(0).await?;
        line.check(gone).await?;
    }
    while !line.all.is_empty() {
        line.leave(line.all.len() / 2).await?;
        line.check("from the middle").await?;
    }
    let mut line = Entries::new(&backend, "smallest")?;
    line.join_all("p5 p2 | p5 p5w2").await?;
    line.leave(1).await?;
    line.check("the smallest limit has gone, and larger ones hold").await?;
    // A larger limit than that of who holds; a smaller one than what is taken; and a try, which joins only if it holds.
    for (ahead, mode) in [
        ("p2", "p9"),
        ("p2 p2", "p9"),
        ("p9 p9 p9", "p2"),
        ("p9 p9 p9", "p4"),
        ("p9 p9 p9", "p4w2"),
        ("p4w2", "p4w2"),
        ("p4w2", "p4w3"),
        ("s", "p4w2"),
        ("p4w2", "s"),
        ("p4w2", "x"),
    ] {
        let mut line = Entries::new(&backend, &format!("try-{}-{mode}", ahead.replace(' ', "-")))?;
        line.join_all(ahead).await?;
        let ask = (request(&line.name, mode.parse()?)?).queue(false);
        let modes = || line.all.iter().map(|(request, _)| request.mode);
        let holds = onelock_core::mode::holders(modes().chain([ask.mode])) > line.all.len();
        let standing = other.acquire(&ask).await?;
        ensure_eq!(matches!(standing, Standing::Held(_)), holds, "whether {mode} holds behind {ahead}");
    }
    // The head needs three, and the two behind it hold as soon as it does.
    let name = name("told")?;
    let ask = |mode: &str| request(&name, mode.parse()?);
    let mut holders = Vec::new();
    for mode in ["p6w3", "p6w2"] {
        holders.push(Entry::holding(&backend, ask(mode)?).await?);
    }
    let mut line = Vec::new();
    for mode in ["p4w3", "p6", "p6w2"] {
        line.push(Entry::waiting(&other, ask(mode)?).await?);
    }
    ensure!(line.iter().all(|entry| entry.token.is_some()), "a waiter without a number");
    holders[0].release().await?;
    expect!(line[0].renew().await?, Renewed::Waiting(_) => (), "5 of 4");
    holders[1].release().await?;
    until_woken(ctx, &line[0]).await?;
    until_woken(ctx, &line[1]).await?;
    expect!(line[2].renew().await?, Renewed::Waiting(_) => (), "6 of 4");
    line[0].release().await?;
    until_woken(ctx, &line[2]).await
}

/// Several modes in one line are granted as the compatible-prefix rule says.
async fn mixed_modes(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let mut line = Entries::new(&backend, "mixed")?;
    line.join_all("p3 p3 | x p3 s s").await?;
    line.check("at first").await?;
    while !line.all.is_empty() {
        line.leave(0).await?;
        line.check("after the first of the line left").await?;
    }
    Ok(())
}

/// Random joins and leaves, from the front, the middle and the end, in all modes the store has.
async fn random_lines_follow_the_specification(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let capabilities = ctx.harness().capabilities();
    let mut modes = vec!["x"];
    modes.extend(if capabilities.shared { &["s", "s"][..] } else { &[] });
    modes.extend(if capabilities.permits { &["p1", "p2", "p2", "p3", "p3w2", "p5w3"][..] } else { &[] });
    let mut rng = ctx.rng();
    for round in 0..ctx.many(6) {
        let mut line = Entries::new(&backend, &format!("random-{round}"))?;
        for step in 0..20 {
            if line.all.is_empty() || rng.below(5) < 3 {
                line.join(modes[rng.index(modes.len())].parse()?).await?;
            } else {
                let i = rng.index(line.all.len());
                line.leave(i).await?;
            }
            line.check(&format!("round {round}, step {step}")).await?;
        }
    }
    Ok(())
}

/// A waiter that was evicted is never told that it holds, however far its wait had come, and whoever leaves ahead of it.
async fn evicted_waiter_never_holds(ctx: &Ctx) -> Verdict {
    let (holding, a, b) = (ctx.backend().await?, ctx.backend().await?, ctx.backend().await?);
    for (round, victim) in [0, 1, 0, 1, 0, 1].into_iter().enumerate() {
        let name = name(&format!("ousted-{round}"))?;
        let first = Entry::holding(&holding, exclusive(&name)?).await?;
        let mut line = Vec::new();
        for backend in [&a, &a, &b] {
            let entry = Entry::waiting(backend, exclusive(&name)?).await?;
            let waits = entry.clone();
            line.push((entry, tokio::spawn(async move { waits.backend.wait(&waits.ticket()).await })));
            // The first rounds evict before the wait has begun, the last when the store has long heard of it.
            for _ in 0..round / 2 * 16 {
                holding.inspect(&name).await?;
            }
        }
        let (ousted, told) = line.remove(victim);
        let number = ousted.token.context("its number")?;
        ensure_eq!(holding.evict(&name, number).await?, Release::Released, "evicting a waiter");
        let mut last = first;
        for (entry, woken) in line {
            last.release().await?;
            // Told or not: a renewal knows.
            let holds = async || Ok(entry.holds().await?.then_some(()));
            ctx.eventually("the next in the line holds", holds).await?;
            let woken = ctx.soon("the wake-up", woken).await???;
            let other = matches!(woken, Wake::Held(other) if Some(other) != entry.token);
            ensure!(!other, "woken as somebody else: {woken:?}");
            last = entry;
        }
        ensure_eq!(ousted.renew().await?, Renewed::NotHeld, "the evicted waiter");
        // A wait that hears nothing goes on: its client ends it when a renewal says that the entry is gone.
        told.abort();
        if let Ok(Ok(Wake::Held(token))) = ctx.soon("the evicted waiter's wait ends", told).await? {
            fail!("round {round}: evicted as {number}, and told that it holds: {token}");
        }
        last.release().await?;
    }
    Ok(())
}

/// A promotion between joining and waiting is not lost, and a wait may be dropped and made anew.
async fn early_wake_is_kept(ctx: &Ctx) -> Verdict {
    let (a, b) = (ctx.backend().await?, ctx.backend().await?);
    for round in 0..ctx.many(10) {
        let name = name(&format!("early-{round}"))?;
        let first = Entry::holding(&a, exclusive(&name)?).await?;
        let second = Entry::waiting(&b, exclusive(&name)?).await?;
        // Dropped half way: the next wait must know all the same.
        for _ in 0..round % 3 {
            let early = tokio::time::timeout(Duration::from_millis(2), b.wait(&second.ticket())).await;
            if let Ok(woken) = early {
                expect!(woken?, Wake::Ask => (), "a wait before the release");
            }
        }
        first.release().await?;
        if round % 2 == 0 {
            // The push has time to come before anybody waits for it.
            for _ in 0..16 {
                a.inspect(&name).await?;
            }
        }
        until_woken(ctx, &second).await?;
        // Asked again and again it says the same.
        until_woken(ctx, &second).await?;
    }
    Ok(())
}

/// Whether the entry holds, by what a wake-up says of it.
async fn holds_after(wake: Wake, entry: &Entry) -> Verdict<bool> {
    match wake {
        Wake::Held(pushed) => {
            ensure_eq!(pushed, entry.token.unwrap_or(pushed), "the pushed token");
            Ok(true)
        }
        Wake::Ask => entry.holds().await,
    }
}

/// Waits until the entry is known to hold: by the push, or by asking when told to.
async fn until_woken(ctx: &Ctx, entry: &Entry) -> Verdict {
    ctx.soon("the wake-up", async {
        loop {
            if holds_after(entry.backend.wait(&entry.ticket()).await?, entry).await? {
                return Ok(());
            }
        }
    })
    .await?
}

/// A hundred releases with two hundred waiters wake a hundred: only the promoted, each once.
async fn only_the_promoted_are_woken(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let name = name("herd")?;
    let (woken, mut wakes) = tokio::sync::mpsc::unbounded_channel();
    let mut line = vec![Entry::holding(&backend, exclusive(&name)?).await?];
    let mut tasks = tokio::task::JoinSet::new();
    for i in 1..=200_usize {
        let entry = Entry::waiting(&backend, exclusive(&name)?).await?;
        line.push(entry.clone());
        let woken = woken.clone();
        tasks.spawn(async move {
            loop {
                let wake = entry.backend.wait(&entry.ticket()).await;
                let over = !matches!(wake, Ok(Wake::Ask));
                if woken.send((i, wake)).is_err() || over {
                    return;
                }
            }
        });
    }
    // A store may say "ask" once to everybody who has just begun to wait: that is not a wake-up by a release.
    tokio::time::sleep(ctx.units(1)).await;
    let mut asked = 0;
    while let Ok((i, wake)) = wakes.try_recv() {
        expect!(wake, Ok(Wake::Ask) => (), "waiter {i} before any release");
        asked += 1;
    }
    ensure!(asked <= 200, "{asked} wake-ups before any release");
    let mut count: HashMap<usize, usize> = HashMap::new();
    for i in 0..100 {
        line[i].release().await?;
        loop {
            let (who, wake) = ctx
                .soon("the next in the line is woken", wakes.recv())
                .await?
                .ok_or_else(|| Stop::failed("no waiter"))?;
            *count.entry(who).or_default() += 1;
            ensure_eq!(who, i + 1, "who is woken by release {i}");
            if holds_after(wake?, &line[who]).await? {
                break;
            }
        }
    }
    tokio::time::sleep(ctx.units(1)).await;
    while let Ok((who, _)) = wakes.try_recv() {
        *count.entry(who).or_default() += 1;
    }
    let others = count.keys().filter(|who| **who > 100).count();
    ensure_eq!(others, 0, "waiters that were woken and not promoted");
    let total: usize = count.values().sum();
    ensure!(total <= 200, "{total} wake-ups for 100 promotions");
    tasks.abort_all();
    Ok(())
}
