//! The line: who holds, in which order, and who is woken.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Backend, FencingToken, LockName, Mode, Release, Renewed, Request, Standing, Wake};

use crate::case::{Need, table};
use crate::ctx::{Ctx, exclusive, held, joined, name, number, renew, renewal, request, ticket, waiting};
use crate::verdict::{Stop, Verdict};
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
    let mut line = Vec::new();
    for i in 0..12 {
        let (backend, request) = (&clients[i % 3], exclusive(&name)?);
        let token = if i == 0 {
            Some(held(backend, &request).await?.token)
        } else {
            waiting(backend, &request).await?.token
        };
        line.push((backend, request, token));
    }
    let mut numbers: Vec<_> = line.iter().filter_map(|(_, _, token)| *token).collect();
    ensure!(numbers.is_sorted_by(|a, b| a < b), "numbers do not grow along the line");
    numbers.clear();
    for i in 0..line.len() {
        for (j, (backend, request, token)) in line.iter().enumerate().skip(i) {
            let answer = if j == i && token.is_none() {
                // The server itself promotes it, and may show it as waiting until its thread runs.
                let held = async || {
                    let answer = renew(backend, renewal(request, *token)).await?;
                    Ok(matches!(answer, Renewed::Held(_)).then_some(answer))
                };
                ctx.eventually("the next one holds", held).await?
            } else {
                renew(backend, renewal(request, *token)).await?
            };
            if let Renewed::Held(grant) = answer {
                ensure_eq!(grant.token, token.unwrap_or(grant.token), "the number of entry {j}");
                numbers.push(grant.token);
            }
            let holds = matches!(answer, Renewed::Held(_));
            ensure_eq!(holds, j == i, "whether entry {j} holds when {i} are gone");
        }
        let (backend, request, token) = &line[i];
        backend.release(&ticket(request, *token)).await?;
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
    let mut line = Vec::new();
    for mode in ["p6w3", "p6w2", "p4w3", "p6", "p6w2"] {
        let request = request(&name, mode.parse()?)?;
        let by = if line.len() < 2 { &backend } else { &other };
        let (holds, token) = joined(by.acquire(&request).await?)?;
        ensure_eq!(holds, line.len() < 2, "whether {mode} holds");
        line.push((request, token));
    }
    let leave = async |i: usize| backend.release(&ticket(&line[i].0, line[i].1)).await;
    leave(0).await?;
    ensure!(
        matches!(renew(&other, renewal(&line[2].0, Some(line[2].1))).await?, Renewed::Waiting(_)),
        "5 of 4"
    );
    leave(1).await?;
    until_woken(ctx, &other, &line[2].0, Some(line[2].1)).await?;
    until_woken(ctx, &other, &line[3].0, Some(line[3].1)).await?;
    ensure!(
        matches!(renew(&other, renewal(&line[4].0, Some(line[4].1))).await?, Renewed::Waiting(_)),
        "6 of 4"
    );
    leave(2).await?;
    until_woken(ctx, &other, &line[4].0, Some(line[4].1)).await
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
        let first = exclusive(&name)?;
        let grant = held(&holding, &first).await?;
        let mut line = Vec::new();
        for backend in [&a, &a, &b] {
            let request = exclusive(&name)?;
            let token = number(waiting(backend, &request).await?)?;
            let (waits, ticket) = (Arc::clone(backend), ticket(&request, token));
            let told = tokio::spawn(async move { waits.wait(&ticket).await });
            line.push((backend, request, token, told));
            // The first rounds evict before the wait has begun, the last when the store has long heard of it.
            for _ in 0..round / 2 * 16 {
                holding.inspect(&name).await?;
            }
        }
        let (backend, request, ousted, told) = line.remove(victim);
        ensure_eq!(holding.evict(&name, ousted).await?, Release::Released, "evicting a waiter");
        let (mut before, mut last) = (&holding, ticket(&first, grant.token));
        for (backend, request, token, told) in &mut line {
            before.release(&last).await?;
            // Told or not: a renewal knows.
            ctx.eventually("the next in the line holds", async || {
                let held = renew(backend, renewal(request, *token)).await?;
                Ok(matches!(held, Renewed::Held(_)).then_some(()))
            })
            .await?;
            let woken = ctx.soon("the wake-up", &mut *told).await???;
            ensure!(
                !matches!(woken, Wake::Held(other) if other != *token),
                "woken as somebody else: {woken:?}"
            );
            (before, last) = (*backend, ticket(request, *token));
        }
        ensure_eq!(renew(backend, renewal(&request, ousted)).await?, Renewed::NotHeld, "the evicted waiter");
        // A wait that hears nothing goes on: its client ends it when a renewal says that the entry is gone.
        told.abort();
        if let Ok(Ok(Wake::Held(token))) = ctx.soon("the evicted waiter's wait ends", told).await? {
            fail!("round {round}: evicted as {ousted}, and told that it holds: {token}");
        }
        before.release(&last).await?;
    }
    Ok(())
}

/// A promotion between joining and waiting is not lost, and a wait may be dropped and made anew.
async fn early_wake_is_kept(ctx: &Ctx) -> Verdict {
    let (a, b) = (ctx.backend().await?, ctx.backend().await?);
    for round in 0..ctx.many(10) {
        let name = name(&format!("early-{round}"))?;
        let (first, second) = (exclusive(&name)?, exclusive(&name)?);
        let grant = held(&a, &first).await?;
        let place = waiting(&b, &second).await?;
        let waiter = ticket(&second, place.token);
        // Dropped half way: the next wait must know all the same.
        for _ in 0..round % 3 {
            let early = tokio::time::timeout(Duration::from_millis(2), b.wait(&waiter)).await;
            if let Ok(woken) = early {
                expect!(woken?, Wake::Ask => (), "a wait before the release");
            }
        }
        a.release(&ticket(&first, grant.token)).await?;
        if round % 2 == 0 {
            // The push has time to come before anybody waits for it.
            for _ in 0..16 {
                a.inspect(&name).await?;
            }
        }
        until_woken(ctx, &b, &second, place.token).await?;
        // Asked again and again it says the same.
        until_woken(ctx, &b, &second, place.token).await?;
    }
    Ok(())
}

/// Whether the entry holds, by what a wake-up says of it.
async fn holds_after(
    wake: Wake,
    backend: &Arc<dyn Backend>,
    request: &Request,
    token: Option<FencingToken>,
) -> Verdict<bool> {
    match wake {
        Wake::Held(pushed) => {
            ensure_eq!(pushed, token.unwrap_or(pushed), "the pushed token");
            Ok(true)
        }
        Wake::Ask => Ok(matches!(renew(backend, renewal(request, token)).await?, Renewed::Held(_))),
    }
}

/// Waits until the entry is known to hold: by the push, or by asking when told to.
async fn until_woken(
    ctx: &Ctx,
    backend: &Arc<dyn Backend>,
    request: &Request,
    token: Option<FencingToken>,
) -> Verdict {
    ctx.soon("the wake-up", async {
        loop {
            let wake = backend.wait(&ticket(request, token)).await?;
            if holds_after(wake, backend, request, token).await? {
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
    let first = exclusive(&name)?;
    let grant = held(&backend, &first).await?;
    let (woken, mut wakes) = tokio::sync::mpsc::unbounded_channel();
    let (mut line, mut tasks) = (vec![(first, Some(grant.token))], tokio::task::JoinSet::new());
    for i in 1..=200_usize {
        let request = exclusive(&name)?;
        let token = waiting(&backend, &request).await?.token;
        let (backend, woken, ticket) = (Arc::clone(&backend), woken.clone(), ticket(&request, token));
        line.push((request, token));
        tasks.spawn(async move {
            loop {
                let wake = backend.wait(&ticket).await;
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
        let (request, token) = &line[i];
        backend.release(&ticket(request, *token)).await?;
        loop {
            let (who, wake) = ctx
                .soon("the next in the line is woken", wakes.recv())
                .await?
                .ok_or_else(|| Stop::failed("no waiter"))?;
            *count.entry(who).or_default() += 1;
            ensure_eq!(who, i + 1, "who is woken by release {i}");
            if holds_after(wake?, &backend, &line[who].0, line[who].1).await? {
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
