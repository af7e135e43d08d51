//! What people see, what is left behind, and what is not ours.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onelock_core::client::guard::LossReason;
use onelock_core::{ErrorKind, FencingToken, ListedName, Mode, Note, Page, Renewed};

use crate::case::{Need, table};
use crate::ctx::{
    Ctx, Entry, LONG, PATIENCE, all, cycle, exclusive, held, holder, joined, leased, listed, name, refused,
    renew, renewal, request, ticket, trying, waiting,
};
use crate::verdict::{Context as _, Stop, Verdict};
use crate::{ensure, ensure_eq, expect};

table! {
    inspect_shows_the_line: [12], [Need::Line], 20;
    list_by_prefix: [13], [Need::Can("list")], 60;
    no_residue: [15], [Need::Residue], 60;
    many_names_leave_bounded_storage: [15], [Need::Residue], 120;
    foreign_data: [19], [Need::Foreign], 30;
    close_drains: [20], [], 30;
    closed_backend_refuses: [20], [], 30;
    unreachable_store: [16], [Need::Unreachable], 60;
    stopped_server: [16], [Need::Pause], 60;
}

/// `inspect` shows modes, numbers, notes, ages and lease ends in line order, and no holder id.
async fn inspect_shows_the_line(ctx: &Ctx) -> Verdict {
    let (backend, other) = (ctx.backend().await?, ctx.backend().await?);
    let name = name("shown")?;
    let line = other.inspect(&name).await?;
    ensure!(
        line.holders.is_empty() && line.waiters.is_empty() && line.name == name,
        "an unknown name: {line:?}"
    );
    let notes = ["host-1:42 ünï 'quotes' \"double\" \\ %s {}", "", &"long ".repeat(100)];
    let mut wanted = Vec::new();
    let mut requests = Vec::new();
    for (i, note) in notes.into_iter().enumerate() {
        let mut request = exclusive(&name)?;
        request.note = Note::new(note)?;
        let (holds, token) = joined(backend.acquire(&request).await?)?;
        ensure_eq!(holds, i == 0, "whether entry {i} holds");
        wanted.push((token, Mode::Exclusive, note.to_owned()));
        requests.push(request);
    }
    let line = other.inspect(&name).await?;
    ensure_eq!((line.holders.len(), line.waiters.len()), (1, 2), "holders and waiters");
    let shown: Vec<_> = line.holders.iter().chain(&line.waiters).collect();
    let entries: Vec<_> = shown.iter().map(|e| (e.token, e.mode, e.note.clone())).collect();
    ensure_eq!(entries, wanted, "the line");
    for entry in shown {
        let longest = LONG + Duration::from_secs(5);
        ensure!(entry.expires_in.is_none_or(|ends| ends <= longest), "a lease that ends late: {entry:?}");
        ensure!(entry.age.is_none_or(|age| age <= PATIENCE), "an old entry: {entry:?}");
    }
    let text = format!("{line:?}");
    for request in &requests {
        ensure!(!text.contains(&request.holder.to_hex()), "a holder id is shown");
    }
    Ok(())
}

/// Every name in use is listed once, by prefix and in pages; a name that is free is not.
async fn list_by_prefix(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    ensure!(listed(&backend, "", 10).await?.is_empty(), "names in an empty store");
    let mut names: Vec<_> = (0..60).map(|i| format!("jobs/{i}")).collect();
    names.extend(
        ["jobs", "jobsx", "Jobs/1", "j", "%6a", "*", "jobs/*", "jobs/?", "ü", "[a]"].map(str::to_owned),
    );
    // Whose bytes differ by 64: where a store keeps names in parts, by a plain sum both are in one.
    names.extend(["pair/1", "pair/q"].map(str::to_owned));
    for text in &names {
        held(&backend, &exclusive(&name(text)?)?).await?;
    }
    cycle(&backend, &name("jobs/free")?).await?;
    held(&backend, &leased(exclusive(&name("jobs/expired")?)?, ctx.units(1))).await?;
    let queued = ctx.harness().capabilities().fifo;
    if queued {
        waiting(&backend, &exclusive(&name("jobs")?)?).await?;
    }
    tokio::time::sleep(ctx.units(2)).await;
    for prefix in ["", "jobs", "jobs/", "jobs/1", "j", "*", "[", "ü", "%", "nothing", "jobs/*", "pair/"] {
        for limit in [1, 7, 1000] {
            let listed = listed(&backend, prefix, limit).await?;
            let set: BTreeSet<_> = listed.iter().map(|listed| listed.name.as_str()).collect();
            ensure_eq!(set.len(), listed.len(), "names listed twice for {prefix:?} by {limit}");
            let wanted: BTreeSet<_> =
                names.iter().map(String::as_str).filter(|n| n.starts_with(prefix)).collect();
            ensure_eq!(set, wanted, "names that start with {prefix:?}, by {limit}");
            for ListedName { name, holders, waiters, .. } in &listed {
                let wanted = (1, usize::from(queued && name.as_str() == "jobs"));
                ensure_eq!((*holders, *waiters), wanted, "entries of {name:?}");
            }
        }
    }
    let long = "x".repeat(300);
    for bad in ["a\n", long.as_str()] {
        refused(backend.list(bad, &Page::first(10)?).await, ErrorKind::InvalidName, "a bad prefix")?;
    }
    Ok(())
}

/// After releases, evictions, tries and expiries of holders and waiters nothing is left beside counters.
async fn no_residue(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let before = ctx.store().residue().await?;
    ensure!(before.is_empty(), "the store is not empty at the start: {before:?}");
    let queued = ctx.harness().capabilities().fifo;
    for i in 0..ctx.many(20) {
        let name = name(&format!("left-{i}"))?;
        let mut line = vec![Entry::holding(&backend, exclusive(&name)?).await?];
        for _ in 0..if queued { 3 } else { 0 } {
            line.push(Entry::waiting(&backend, exclusive(&name)?).await?);
        }
        ensure!(!ctx.store().residue().await?.is_empty(), "the suite does not see what is in the store");
        backend.acquire(&trying(exclusive(&name)?)).await?;
        // From the front, from the back, by eviction.
        match i % 3 {
            0 => {}
            1 => line.reverse(),
            _ => {
                backend.evict(&name, line[0].token.context("its number")?).await?;
            }
        }
        for entry in line {
            entry.release().await?;
        }
        backend.inspect(&name).await?;
    }
    ctx.until_empty().await?;
    // Leases that ran out; a look at the name is enough to clear it where the store does not do so by itself.
    for i in 0..10 {
        let name = name(&format!("expired-{i}"))?;
        held(&backend, &leased(exclusive(&name)?, ctx.units(1))).await?;
        if queued {
            waiting(&backend, &leased(exclusive(&name)?, ctx.units(1))).await?;
        }
    }
    tokio::time::sleep(ctx.units(2)).await;
    for i in 0..10 {
        backend.inspect(&name(&format!("expired-{i}"))?).await?;
    }
    ctx.until_empty().await
}

/// Counters do not grow with the number of names that were ever used.
async fn many_names_leave_bounded_storage(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let many = ctx.volume(10_000);
    let mut counters = Vec::new();
    for part in 0..4 {
        let mut tasks = tokio::task::JoinSet::new();
        for lane in 0..16 {
            let backend = Arc::clone(&backend);
            tasks.spawn(async move {
                for i in (lane..many / 4).step_by(16) {
                    cycle(&backend, &name(&format!("name-{part}-{i}"))?).await?;
                }
                Ok::<_, Stop>(())
            });
        }
        all(tasks).await?;
        counters.push(ctx.store().counters().await?);
    }
    ctx.until_empty().await?;
    let (first, last) = (counters[0], counters[3]);
    ensure!(last <= 4096, "{last} counters after {many} names");
    ensure!(last <= first + first / 4 + 4, "counters grow with the names: {counters:?}");
    Ok(())
}

/// What is not ours, where ours would be, is an error that says so, and stays as it is.
async fn foreign_data(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let name = name("planted")?;
    ctx.store().plant(name.as_str()).await?;
    ensure!(ctx.store().planted(name.as_str()).await?, "nothing was planted");
    for mode in [Mode::Exclusive, Mode::Shared] {
        for queue in [true, false] {
            let mut request = request(&name, mode)?;
            request.queue = queue;
            let foreign = ErrorKind::Foreign;
            refused(backend.acquire(&request).await, foreign, "an acquire on foreign data")?;
            refused(backend.release(&request.ticket()).await, foreign, "a release on foreign data")?;
            refused(backend.inspect(&name).await, foreign, "a look at foreign data")?;
            refused(backend.evict(&name, FencingToken::new(1)?).await, foreign, "evicting foreign data")?;
            // In a batch it spoils no other entry.
            let good = exclusive(&crate::ctx::name(&format!("good-{mode}-{queue}"))?)?;
            let grant = held(&backend, &good).await?;
            let due =
                [renewal(&good, grant.token), renewal(&request, grant.token), renewal(&good, grant.token)];
            let mut answers = backend.renew(&due).await;
            ensure_eq!(answers.len(), 3, "answers");
            refused(answers.remove(1), foreign, "the renewal on foreign data")?;
            ensure!(answers.iter().all(|good| matches!(good, Ok(Renewed::Held(_)))), "{answers:?}");
        }
    }
    ensure!(ctx.store().planted(name.as_str()).await?, "the foreign data was changed");
    Ok(())
}

/// `close` gives back what is owed, ends the waiting and what is held, and refuses what comes later. A lock stays blocked as long as
/// its guard lives.
async fn close_drains(ctx: &Ctx) -> Verdict {
    let (locks, other) = (ctx.locks().await?, ctx.locks().await?);
    let mut guards = Vec::new();
    for i in 0..20 {
        let guard = locks.mutex(format!("closing-{i}"))?.acquire().await?;
        // Half are dropped just now, half are held when the client closes.
        if i % 2 == 0 {
            guards.push(guard);
        }
    }
    let blocker = other.mutex("closing-wait")?.acquire().await?;
    let waiter = ctx.queued(locks.mutex("closing-wait")?, &other, 2).await?;
    locks.close(PATIENCE).await?;
    ensure_eq!(locks.pending(), 0, "what is owed after close");
    let waited = ctx.soon("the waiter ends", waiter).await??;
    refused(waited, ErrorKind::Closed, "the waiter of a closed client")?;
    for guard in &guards {
        ensure!(!guard.is_held(), "a guard of a closed client is held");
        ensure_eq!(guard.lost().await, LossReason::Closed, "why it is lost");
    }
    let late = locks.mutex("late")?.try_acquire().await;
    refused(late, ErrorKind::Closed, "a try on a closed client")?;
    blocker.release().await?;
    for i in 0..20 {
        let guard = other.mutex(format!("closing-{i}"))?.try_acquire().await?;
        // Work may still run under a guard that lives.
        ensure_eq!(guard.is_some(), i % 2 == 1, "whether lock {i} is free after close");
    }
    drop(guards);
    for i in 0..20 {
        let free = other.mutex(format!("closing-{i}"))?;
        drop(ctx.soon("a lock is free once its guard has gone", free.acquire()).await??);
    }
    Ok(())
}

/// Every verb of a closed backend fails with `Closed`, and closing it again is harmless.
async fn closed_backend_refuses(ctx: &Ctx) -> Verdict {
    let (backend, other) = (ctx.backend().await?, ctx.backend().await?);
    let name = name("closed")?;
    let request = exclusive(&name)?;
    let grant = held(&backend, &request).await?;
    let pending = if ctx.harness().capabilities().fifo {
        let second = Entry::waiting(&backend, exclusive(&name)?).await?;
        Some(tokio::spawn(async move { second.backend.wait(&second.ticket()).await }))
    } else {
        None
    };
    backend.close().await?;
    backend.close().await?;
    let ours = ticket(&request, grant.token);
    let closed = ErrorKind::Closed;
    refused(backend.acquire(&request).await, closed, "`acquire` of a closed backend")?;
    let wait = ctx.soon("a wait on a closed backend", backend.wait(&ours)).await?;
    refused(wait, closed, "`wait` of a closed backend")?;
    refused(backend.release(&ours).await, closed, "`release` of a closed backend")?;
    refused(backend.raise(&ours, grant.token).await, closed, "`raise` of a closed backend")?;
    refused(backend.inspect(&name).await, closed, "`inspect` of a closed backend")?;
    refused(backend.list("", &Page::first(1)?).await, closed, "`list` of a closed backend")?;
    refused(backend.evict(&name, grant.token).await, closed, "`evict` of a closed backend")?;
    let renewed = backend.renew(&[renewal(&request, grant.token)]).await.remove(0);
    refused(renewed, closed, "`renew` of a closed backend")?;
    if let Some(pending) = pending {
        let _woken = ctx.soon("a wait under way when the backend is closed ends", pending).await??;
    }
    if !ctx.harness().capabilities().resume {
        // They belong to the client's session, which has ended.
        return Ok(());
    }
    // The entries are the store's: closing a client does not end them.
    ensure_eq!(holder(&other, &name).await?, Some(grant.token), "the holder after its client closed");
    expect!(renew(&other, renewal(&request, grant.token)).await?, Renewed::Held(_) => (), "a renewal by another client");
    Ok(())
}

/// A store that cannot be reached is a typed error in bounded time.
async fn unreachable_store(ctx: &Ctx) -> Verdict {
    let url = ctx.store().unreachable_url()?;
    let began = Instant::now();
    let error = match ctx.soon("opening a store that is not there", ctx.harness().open(&url)).await? {
        Err(error) => error,
        // A store may connect later: then the first verb says it.
        Ok(backend) => {
            let request = exclusive(&name("nowhere")?)?;
            let acquired = ctx.soon("an acquire on a store that is not there", backend.acquire(&request));
            expect!(acquired.await?, Err(error) => error, "an acquire on a store that is not there")
        }
    };
    let kinds = [ErrorKind::Unavailable, ErrorKind::Timeout, ErrorKind::InvalidConfig];
    ensure!(kinds.contains(&error.kind()), "{error}");
    ensure!(began.elapsed() < Duration::from_secs(30), "it took {:?}", began.elapsed());
    Ok(())
}

/// A server that stalls fails the verbs in bounded time with "perhaps done", and serves again afterwards.
async fn stopped_server(ctx: &Ctx) -> Verdict {
    let backend = ctx.backend().await?;
    let (one, two) = (name("stopped")?, name("stopped-new")?);
    let request = exclusive(&one)?;
    let grant = held(&backend, &request).await?;
    let stopped = ctx.store().pause(true).await;
    let answers = ctx.soon("verbs while the server stalls", async {
        let acquired = backend.acquire(&exclusive(&two)?).await;
        let inspected = backend.inspect(&one).await;
        let renewed = backend.renew(&[renewal(&request, grant.token)]).await.remove(0);
        Ok::<_, Stop>([acquired.map(drop), inspected.map(drop), renewed.map(drop)])
    });
    let answers = answers.await;
    // What has stopped half way goes on, too.
    stopped.and(ctx.store().pause(false).await)?;
    for (i, answer) in answers??.into_iter().enumerate() {
        let error = expect!(answer, Err(error) => error, "a verb while the server stalls");
        ensure!(error.is_retryable(), "{error}");
        // The later ones may not even have been sent.
        ensure!(i > 0 || error.is_unclear(), "who knows whether the server has acted: {error}");
    }
    ctx.eventually("the store serves again", async || {
        Ok(backend.renew(&[renewal(&request, grant.token)]).await.remove(0).ok())
    })
    .await?;
    Ok(())
}
