//! What a lock costs in requests, and who is woken.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use onelock_conformance::ctx::{exclusive, held, name, number, renewal, request, ticket, waiting};
use onelock_conformance::verdict::{Context as _, Stop, Verdict};
use onelock_conformance::{ensure, ensure_eq};
use onelock_core::{Error, Mode, Renewed, Standing, Wake};
use zookeeper_client as zk;

use crate::support::harness::open;
use crate::{counted, eventually, quiet, raw};

/// A cycle on a free lock is one request each way, by a queued acquire and by a try, and nothing stays behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_free_lock_costs_two_requests() -> Verdict {
    const MULTI: i32 = 14;
    let (server, counter, url) = counted().await?;
    let client = open(&url).await?;
    let name = name("free")?;
    let admin = raw(&server).await?;
    for round in 0..41 {
        let before = counter.counts().by_code();
        let mut request = exclusive(&name)?;
        request.queue = round % 2 == 0;
        let grant = held(&client, &request).await?;
        client.release(&ticket(&request, grant.token)).await?;
        ensure!(admin.check_stat("/own/free").await?.is_none(), "the node of the name is left");
        if round > 0 {
            let mut expected = before;
            *expected.entry(MULTI).or_default() += 2;
            ensure_eq!(counter.counts().by_code(), expected, "requests by code");
        }
    }
    Ok(())
}

/// A hundred joins of one name whose answers are lost: to look for what they have made costs a listing or two, not a
/// hundred, or a server that is too slow for its crowd gets more to do the slower it is.
#[tokio::test(flavor = "multi_thread")]
async fn what_lost_joins_have_made_is_looked_for_together() -> Verdict {
    const CHILDREN: i32 = 12;
    let (server, counter, url) = counted().await?;
    let client = open(&format!("{url}&request_timeout=300ms")).await?;
    let name = name("crowd")?;
    let first = exclusive(&name)?;
    let token = held(&client, &first).await?.token;
    server.process.pause(true)?;
    let requests = (0..100).map(|_| exclusive(&name)).collect::<Verdict<Vec<_>>>()?;
    let lost = join_all(requests.iter().map(|request| client.acquire(request))).await;
    server.process.pause(false)?;
    ensure!(lost.iter().all(|answer| answer.as_ref().is_err_and(Error::is_unclear)), "{lost:?}");
    eventually("the server answers", async || Ok(client.inspect(&name).await.ok())).await?;
    let before = counter.counts().by_code();
    let released = join_all(requests.iter().map(async |lost| client.release(&lost.ticket()).await)).await;
    ensure!(released.iter().all(Result::is_ok), "{released:?}");
    let listed = counter.counts().by_code()[&CHILDREN] - before[&CHILDREN];
    ensure!((1..=4).contains(&listed), "{listed} listings for 100 entries");
    client.release(&ticket(&first, token)).await?;
    let line = client.inspect(&name).await?;
    ensure!(line.holders.is_empty() && line.waiters.is_empty(), "left: {line:?}");
    Ok(())
}

/// A hundred releases with two hundred waiters on two clients: each wakes the one it promotes, with the grant, and nobody
/// else; the others send nothing.
#[tokio::test(flavor = "multi_thread")]
async fn releases_wake_only_the_promoted() -> Verdict {
    let (_server, counter, url) = counted().await?;
    let clients = [open(&url).await?, open(&url).await?];
    for mode in [Mode::Exclusive, Mode::permit(2)?] {
        let name = name(&format!("herd-{mode}"))?;
        let mut line = Vec::new();
        let mut tasks = tokio::task::JoinSet::new();
        let (told, mut woken) = tokio::sync::mpsc::unbounded_channel();
        let holders = if mode == Mode::Exclusive { 1 } else { 2 };
        for i in 0..200 + holders {
            let (client, request) = (Arc::clone(&clients[i % 2]), request(&name, mode)?);
            if i < holders {
                let token = held(&client, &request).await?.token;
                line.push((client, ticket(&request, token)));
                continue;
            }
            let ticket = ticket(&request, waiting(&client, &request).await?.token);
            line.push((Arc::clone(&client), ticket.clone()));
            let told = told.clone();
            tasks.spawn(async move { told.send((i, client.wait(&ticket).await)).is_ok() });
        }
        // Every waiter sets its watch: then it is quiet.
        let before = quiet(&counter).await?;
        for i in 0..100 {
            let (client, ticket) = &line[i];
            client.release(ticket).await?;
            let next = tokio::time::timeout(Duration::from_secs(30), woken.recv()).await?;
            let (who, wake) = next.context("a waiter")?;
            let promoted = i + holders;
            ensure_eq!(who, promoted, "who is woken by release {i}");
            ensure_eq!(wake?, Wake::Held(line[promoted].1.token.context("a token")?), "release {i}");
        }
        let cost = quiet(&counter).await? - before;
        ensure!(woken.try_recv().is_err(), "somebody else was woken in mode {mode}");
        // The release, the look of the one that is told, and one more where the line moves faster than watches are set.
        // For permits also its mark, and the look and the watch of the one behind it, which is the first now.
        let most = if mode == Mode::Exclusive { 3 } else { 8 } * 100;
        println!("{cost} requests for 100 releases in mode {mode}");
        ensure!(cost <= most, "{cost} requests for 100 releases in mode {mode}");
        tasks.abort_all();
    }
    Ok(())
}

/// A lock that is always waited for costs six requests for each owner: create, list and the token epoch, which go together,
/// watch, look and delete.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_costs_six_requests() -> Verdict {
    const DELETE: i32 = 2;
    const EXISTS: i32 = 3;
    const DATA: i32 = 4;
    const CHILDREN: i32 = 12;
    const CREATE: i32 = 15;
    const ROUNDS: usize = 40;
    let (_server, counter, url) = counted().await?;
    let clients = [open(&url).await?, open(&url).await?, open(&url).await?];
    for mode in [Mode::Exclusive, Mode::Shared] {
        let name = name(&format!("hot-{mode}"))?;
        // Readers are waited for by writers, and so the other way round.
        let modes = [Mode::Exclusive, mode, Mode::Exclusive];
        let mut line = std::collections::VecDeque::new();
        for (client, mode) in clients.iter().zip(modes) {
            let request = request(&name, mode)?;
            let answer = client.acquire(&request).await?;
            let token = match answer {
                Standing::Held(grant) => grant.token,
                Standing::Waiting(place) => number(place)?,
                Standing::Busy(_) => return Err(Stop::failed("busy")),
            };
            line.push_back((client, mode, ticket(&request, token)));
        }
        let mut before = counter.counts().by_code();
        for round in 0..ROUNDS + 9 {
            if round == 9 {
                // By now each client knows that the name is used.
                before = counter.counts().by_code();
            }
            let (client, mode, first) = line.pop_front().context("the first")?;
            client.release(&first).await?;
            let (next, _, second) = line.front().context("the second")?;
            let wake = tokio::time::timeout(Duration::from_secs(30), next.wait(second)).await??;
            ensure_eq!(Some(wake), second.token.map(Wake::Held), "round {round} in mode {mode}");
            let request = request(&name, mode)?;
            let token = waiting(client, &request).await?.token;
            line.push_back((client, mode, ticket(&request, token)));
        }
        let mut cost = counter.counts().by_code();
        cost.iter_mut().for_each(|(code, count)| *count -= before.get(code).copied().unwrap_or_default());
        cost.retain(|_, count| *count > 0);
        let each = u64::try_from(ROUNDS).unwrap();
        let wanted = [(DELETE, each), (EXISTS, each), (DATA, each), (CHILDREN, 2 * each), (CREATE, each)];
        ensure_eq!(cost, wanted.into(), "requests by code for {ROUNDS} owners in mode {mode}");
        for (client, _, ticket) in line {
            client.release(&ticket).await?;
        }
    }
    Ok(())
}

/// A waiter is not notified when one ahead leaves who never held. It looks and sets another watch where that was the one
/// just ahead.
#[tokio::test(flavor = "multi_thread")]
async fn who_gives_up_waiting_promotes_nobody() -> Verdict {
    let (_server, counter, url) = counted().await?;
    let (first, last) = (open(&url).await?, open(&url).await?);
    let name = name("given-up")?;
    let mut ahead = Vec::new();
    for _ in 0..4 {
        let request = exclusive(&name)?;
        first.acquire(&request).await?;
        ahead.push(request.ticket());
    }
    let request = exclusive(&name)?;
    let own = ticket(&request, waiting(&last, &request).await?.token);
    let mut told = tokio::spawn({
        let (last, own) = (Arc::clone(&last), own.clone());
        async move { last.wait(&own).await }
    });
    let mut asked = quiet(&counter).await?;
    for (at, requests) in [(3, 3), (1, 1), (2, 3)] {
        first.release(&ahead[at]).await?;
        let now = quiet(&counter).await?;
        ensure_eq!(now - asked, requests, "requests when number {at} gave up");
        ensure!(!told.is_finished(), "told when number {at} gave up");
        asked = now;
    }
    first.release(&ahead[0]).await?;
    let wake = tokio::time::timeout(Duration::from_secs(30), &mut told).await???;
    ensure_eq!(Some(wake), own.token.map(Wake::Held), "the last departure");
    Ok(())
}

/// A waiting permit's node is written by somebody else: the waiter behind it looks once, watches on, and is promoted in turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_others_write_is_watched_on() -> Verdict {
    let (server, counter, url) = counted().await?;
    let client = open(&url).await?;
    let (name, mode) = (name("written")?, Mode::permit(2)?);
    let (mut held_by, mut waits) = (Vec::new(), Vec::new());
    for i in 0..4 {
        let request = request(&name, mode)?;
        if i < 2 {
            held_by.push(ticket(&request, held(&client, &request).await?.token));
            continue;
        }
        let own = ticket(&request, waiting(&client, &request).await?.token);
        let (client, asked) = (Arc::clone(&client), own.clone());
        waits.push((own, tokio::spawn(async move { client.wait(&asked).await })));
    }
    let admin = raw(&server).await?;
    let mut nodes = admin.list_children("/own/written").await?;
    nodes.sort_by_key(|node| node.rsplit('-').next().map(str::to_owned));
    let third = format!("/own/written/{}", nodes[2]);
    let mut before = quiet(&counter).await?;
    for round in 0..3 {
        admin.set_data(&third, b"by hand", None).await?;
        let now = quiet(&counter).await?;
        ensure!((1..=3).contains(&(now - before)), "{} requests after write {round}", now - before);
        before = now;
    }
    for ((own, wait), first) in waits.into_iter().zip(&held_by) {
        ensure!(!wait.is_finished(), "told before anybody has left");
        client.release(first).await?;
        let wake = tokio::time::timeout(Duration::from_secs(30), wait).await???;
        ensure_eq!(Some(wake), own.token.map(Wake::Held), "the next one");
        quiet(&counter).await?;
    }
    Ok(())
}

/// However many entries are gone, a renewal finds them all by one more read, and renews the others by one more write.
#[tokio::test(flavor = "multi_thread")]
async fn entries_that_are_gone_cost_two_requests_together() -> Verdict {
    const MULTI: i32 = 14;
    const MULTI_READ: i32 = 22;
    let (server, counter, url) = counted().await?;
    let client = open(&url).await?;
    let admin = raw(&server).await?;
    let (mut due, mut gone) = (Vec::new(), admin.new_multi_writer());
    for i in 0..120 {
        let request = exclusive(&name(&format!("gone-{i}"))?)?;
        due.push(renewal(&request, held(&client, &request).await?.token));
        if i % 40 != 0 {
            let path = format!("/own/gone-{i}");
            let node = admin.list_children(&path).await?.pop().context("its node")?;
            gone.add_delete(&format!("{path}/{node}"), None)?;
        }
    }
    gone.commit().await?;
    let before = counter.counts().by_code();
    for (i, answer) in client.renew(&due).await.into_iter().enumerate() {
        ensure_eq!(matches!(answer?, Renewed::Held(_)), i % 40 == 0, "whether {i} is held");
    }
    let mut expected = before;
    *expected.entry(MULTI).or_default() += 2;
    *expected.entry(MULTI_READ).or_default() += 1;
    ensure_eq!(counter.counts().by_code(), expected, "requests by code");
    Ok(())
}

/// Connecting costs the same however many names there are.
#[tokio::test(flavor = "multi_thread")]
async fn connecting_reads_no_names() -> Verdict {
    let (server, counter, url) = counted().await?;
    let admin = raw(&server).await?;
    let mode = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    admin.mkdir("/own", &mode).await?;
    for hundred in 0..10 {
        let mut names = admin.new_multi_writer();
        for i in 0..100 {
            names.add_create(&format!("/own/{hundred}-{i:0>100}"), b"", &mode)?;
        }
        names.commit().await?;
    }
    let before = counter.counts().bytes();
    let client = open(&url).await?;
    ensure!(client.capabilities().fifo, "it is open");
    let bytes = counter.counts().bytes() - before;
    ensure!(bytes < 4_000, "{bytes} bytes for connecting with a thousand names");
    Ok(())
}
