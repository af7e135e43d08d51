//! What the shared suite does not know of etcd: its keys, requests by kind, foreign entries, rights.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::server::{Admin as _, Member};
use crate::support::waits;
use onelock_conformance::ctx::{
    PATIENCE, exclusive, held, leased, name, renewal, request, ticket, trying, waiting,
};
use onelock_conformance::harness::open_by;
use onelock_conformance::servers::Place;
use onelock_core::{Backend, Locks, Mode, Page, Renewed, Standing, Wake};
use onelock_etcd::DRIVER;
use tokio::time::timeout;

type Outcome = onelock_conformance::Verdict;

async fn client(url: &str) -> Arc<dyn Backend> {
    open_by(&DRIVER, url).await.unwrap()
}

/// What the server received since `before`, by method, without what was not.
async fn since(server: &Member, before: &[(String, u64)]) -> Vec<(String, u64)> {
    let old = |method: &str| before.iter().find(|(m, _)| m == method).map_or(0, |(_, count)| *count);
    let mut new: Vec<_> = server
        .received()
        .await
        .unwrap()
        .into_iter()
        .map(|(method, count)| (method.clone(), count - old(&method)))
        .filter(|(_, count)| *count > 0)
        .collect();
    new.sort();
    new
}

fn counts(pairs: &[(&str, u64)]) -> Vec<(String, u64)> {
    pairs.iter().map(|(method, count)| ((*method).to_owned(), *count)).collect()
}

#[tokio::test]
async fn a_cycle_is_a_transaction_and_a_deletion() -> Outcome {
    let server = Member::single(None).await?;
    let backend = client(&server.url()).await;
    let name = name("cycle")?;
    for mode in ["x", "s", "p3"] {
        let mode: Mode = mode.parse()?;
        for queue in [true, false] {
            let mut warm = request(&name, mode)?;
            warm.queue = queue;
            backend.release(&ticket(&warm, held(&backend, &warm).await?.token)).await?;
            let before = server.received().await?;
            for _ in 0..10 {
                let mut request = request(&name, mode)?;
                request.queue = queue;
                let grant = held(&backend, &request).await?;
                backend.release(&ticket(&request, grant.token)).await?;
            }
            assert_eq!(since(&server, &before).await, counts(&[("DeleteRange", 10), ("Txn", 10)]));
        }
    }
    Ok(())
}

/// A waiter behind more permits than a request has operations for, on a server with the default and with a lower limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_semaphore_is_waited_for() -> Outcome {
    let fewer = |operations: u8| Some(format!("--max-txn-ops={operations}"));
    for (limit, more) in [(200, None), (12, fewer(10)), (6, fewer(4))] {
        let server = Member::with(Place::Memory, None, more.as_slice()).await?;
        let backend = client(&server.url()).await;
        let (name, mode) = (name("large")?, Mode::permit(limit)?);
        let mut holders = Vec::new();
        for _ in 0..limit {
            let holder = request(&name, mode)?;
            let token = held(&backend, &holder).await?.token;
            holders.push(ticket(&holder, token));
        }
        let waiter = request(&name, mode)?;
        let token = waiting(&backend, &waiter).await?.token;
        let due = renewal(&waiter, token);
        assert!(matches!(backend.renew(std::slice::from_ref(&due)).await[0], Ok(Renewed::Waiting(_))));
        let (client, asked) = (Arc::clone(&backend), due.ticket.clone());
        let wait = tokio::spawn(async move { client.wait(&asked).await });
        backend.release(&holders[1]).await?;
        let wake = timeout(PATIENCE, wait).await.expect("the waiter is notified")?;
        match (wake?, backend.renew(std::slice::from_ref(&due)).await.remove(0)?) {
            (Wake::Held(_) | Wake::Ask, Renewed::Held(_)) => {}
            other => panic!("p{limit}: {other:?}"),
        }
    }
    Ok(())
}

/// A crowd that asks for permits of which there are enough: each gets one, and nobody is refused because others joined at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_gets_the_permits_there_are() -> Outcome {
    let server = Member::single(None).await?;
    let backend = client(&server.url()).await;
    let (name, mode) = (name("enough")?, Mode::permit(1_000)?);
    held(&backend, &request(&name, mode)?).await?;
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (client, asked) = (Arc::clone(&backend), request(&name, mode)?);
        crowd.spawn(async move { client.acquire(&asked).await });
    }
    for standing in crowd.join_all().await {
        assert!(matches!(standing, Ok(Standing::Held(_))), "{standing:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_busy_try_is_one_transaction() -> Outcome {
    let server = Member::single(None).await?;
    let (backend, other) = (client(&server.url()).await, client(&server.url()).await);
    let name = name("busy")?;
    held(&backend, &exclusive(&name)?).await?;
    for mode in ["x", "s", "p3"] {
        let attempt = trying(request(&name, mode.parse()?)?);
        assert!(matches!(other.acquire(&attempt).await?, Standing::Busy(_)));
        let before = server.received().await?;
        for _ in 0..10 {
            let attempt = trying(request(&name, mode.parse()?)?);
            assert!(matches!(other.acquire(&attempt).await?, Standing::Busy(_)), "{mode}");
        }
        assert_eq!(since(&server, &before).await, counts(&[("Txn", 10)]), "{mode}");
    }
    Ok(())
}

/// A hand-over is a join, a deletion, and of the waiter the opening and the end of a watch and a reading after each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_hand_over_costs() -> Outcome {
    let server = Member::single(None).await?;
    let (a, b) = (client(&server.url()).await, client(&server.url()).await);
    let name = name("handed")?;
    let mut holder = (Arc::clone(&a), exclusive(&name)?);
    let mut token = held(&a, &holder.1).await?.token;
    let mut next = (Arc::clone(&b), exclusive(&name)?);
    let mut place = waiting(&b, &next.1).await?;
    let mut before = Vec::new();
    for round in 0..52 {
        let (backend, wanted) = (Arc::clone(&next.0), ticket(&next.1, place.token));
        let woken = tokio::spawn(async move { backend.wait(&wanted).await });
        holder.0.release(&ticket(&holder.1, token)).await?;
        assert_eq!(timeout(PATIENCE, woken).await???, Wake::Held(place.token.unwrap()));
        token = place.token.unwrap();
        let last = std::mem::replace(&mut holder, next);
        next = (last.0, exclusive(&name)?);
        place = waiting(&next.0, &next.1).await?;
        if round == 1 {
            // Both know now that the line is in use.
            before = at_rest(&server).await?;
        }
    }
    let made = since(&server, &before).await;
    // A watch that is opened while a write is committed may be late: it is opened again, and read after, in some of a hundred waits.
    assert_at_most(&made, &[("DeleteRange", 50), ("Txn", 150 + 5), ("Watch", 102 + 10)]);
    Ok(())
}

/// That no more was made than this, and nothing else.
fn assert_at_most(made: &[(String, u64)], most: &[(&str, u64)]) {
    for (method, count) in made {
        let most = most.iter().find(|(name, _)| name == method).map_or(0, |(_, most)| *most);
        assert!(*count <= most, "{count} of {method}: {made:?}");
    }
}

/// What the server has received when it receives nothing more.
async fn at_rest(server: &Member) -> onelock_conformance::Verdict<Vec<(String, u64)>> {
    let end = Instant::now() + PATIENCE;
    let mut before = server.received().await?;
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = server.received().await?;
        if now == before {
            return Ok(now);
        }
        assert!(Instant::now() < end, "requests never end");
        before = now;
    }
}

/// A hundred releases with two hundred waiters on two clients: each wakes the one it promotes, with the grant, and nobody
/// else; and of all who wait only the promoted one asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_wake_only_the_promoted() -> Outcome {
    let server = Member::single(None).await?;
    let clients = [client(&server.url()).await, client(&server.url()).await];
    let name = name("herd")?;
    let first = exclusive(&name)?;
    let mut line = vec![(Arc::clone(&clients[0]), ticket(&first, held(&clients[0], &first).await?.token))];
    let mut tasks = tokio::task::JoinSet::new();
    let (told, mut woken) = tokio::sync::mpsc::unbounded_channel();
    for i in 0..200 {
        let (backend, request) = (Arc::clone(&clients[i % 2]), exclusive(&name)?);
        let ticket = ticket(&request, waiting(&backend, &request).await?.token);
        line.push((Arc::clone(&backend), ticket.clone()));
        let told = told.clone();
        tasks.spawn(async move { told.send((i + 1, backend.wait(&ticket).await)).is_ok() });
    }
    // Each has read whom it waits for; then it is quiet.
    let before = at_rest(&server).await?;
    for i in 0..100 {
        let (backend, ticket) = &line[i];
        backend.release(ticket).await?;
        let (who, wake) = timeout(PATIENCE, woken.recv()).await?.unwrap();
        assert_eq!((who, wake?), (i + 1, Wake::Held(line[i + 1].1.token.unwrap())));
    }
    at_rest(&server).await?;
    let made = since(&server, &before).await;
    assert_at_most(&made, &[("DeleteRange", 100), ("Txn", 100), ("Watch", 100)]);
    assert!(woken.try_recv().is_err(), "somebody else was woken");
    tasks.abort_all();
    Ok(())
}

/// A server that comes back is asked by each who waits in a line whether the one ahead is there; that wakes nobody, and the next
/// release the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_stay_in_line_over_a_restart() -> Outcome {
    let server = Member::single(None).await?;
    let backend = client(&server.url()).await;
    let name = name("crowd")?;
    let first = exclusive(&name)?;
    let token = held(&backend, &first).await?.token;
    let (told, mut woken) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = tokio::task::JoinSet::new();
    let mut line = Vec::new();
    for i in 0..100 {
        let request = exclusive(&name)?;
        let ticket = ticket(&request, waiting(&backend, &request).await?.token);
        line.push(ticket.token);
        let (waits, told) = (waits(&backend, &ticket), told.clone());
        tasks.spawn(async move { told.send((i, waits.await.unwrap())).is_ok() });
    }
    at_rest(&server).await?;
    server.restart().await?;
    // It counts from zero again.
    let end = Instant::now() + PATIENCE;
    let read = |counts: &[(String, u64)]| {
        counts.iter().find(|(method, _)| method == "Txn").map_or(0, |(_, count)| *count)
    };
    while read(&server.received().await?) < 100 {
        assert!(Instant::now() < end, "they do not read again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let reads = read(&at_rest(&server).await?);
    assert!(reads <= 200, "{reads} readings for a hundred waiters");
    assert!(woken.try_recv().is_err(), "somebody was woken");
    backend.release(&ticket(&first, token)).await?;
    let (who, wake) = timeout(PATIENCE, woken.recv()).await?.unwrap();
    assert_eq!((who, wake?), (0, Wake::Held(line[0].unwrap())));
    Ok(())
}

/// Whoever comes with a promoted entry's renewal finds it on the lease of a holder: one guarded move, then reads only.
#[tokio::test]
async fn a_promoted_waiter_moves_to_a_holders_lease() -> Outcome {
    let server = Member::single(None).await?;
    let backend = client(&server.url()).await;
    let name = name("moved")?;
    let first = exclusive(&name)?;
    let grant = held(&backend, &first).await?;
    let mut second = exclusive(&name)?;
    (second.lease, second.waiter_lease) = (Duration::from_secs(60), Duration::from_secs(5));
    let place = waiting(&backend, &second).await?;
    assert_eq!(place.lease, Duration::from_secs(5));
    backend.release(&ticket(&first, grant.token)).await?;
    assert_eq!(backend.wait(&ticket(&second, place.token)).await?, Wake::Held(place.token.unwrap()));
    let due = [renewal(&second, place.token)];
    // The end of the watch is sent behind the answer.
    let before = at_rest(&server).await?;
    let Renewed::Held(grant) = backend.renew(&due).await.remove(0)? else { panic!("it holds") };
    assert_eq!((grant.token, grant.lease), (place.token.unwrap(), Duration::from_secs(60)));
    let all = since(&server, &before).await;
    let made: u64 = all.iter().map(|(_, count)| count).sum();
    assert!(made <= 3, "a grant of the lease, the move, and no more: {all:?}");
    let key = server.admin().await?.get(key_of("onelock/moved/", &second), None).await?;
    let lease = key.kvs()[0].lease();
    let ttl = server.admin().await?.lease_client().time_to_live(lease, None).await?;
    assert!(ttl.granted_ttl() >= 60, "{}", ttl.granted_ttl());
    Ok(())
}

fn key_of(line: &str, request: &onelock_core::Request) -> String {
    format!("{line}{}", request.holder.to_hex())
}

/// An entry of somebody else counts, is shown, wakes when it goes, and is evicted by its number only.
#[tokio::test]
async fn a_foreign_key_is_an_entry() -> Outcome {
    let server = Member::single(None).await?;
    let backend = client(&server.url()).await;
    let (name, mut admin) = (name("shared")?, server.admin().await?);
    admin.put("onelock/shared/694d7f3a2b", "not ours\n", None).await?;
    admin.put("onelock/no-lock", "", None).await?;
    admin.put("onelock/%zz/1", "", None).await?;
    for mode in ["x", "s", "p3"] {
        let attempt = trying(request(&name, mode.parse()?)?);
        assert!(matches!(backend.acquire(&attempt).await?, Standing::Busy(_)), "{mode}");
    }
    let ours = request(&name, Mode::Shared)?;
    let place = waiting(&backend, &ours).await?;
    let line = backend.inspect(&name).await?;
    assert_eq!((line.holders.len(), line.waiters.len()), (1, 1));
    assert_eq!((line.holders[0].mode, &line.holders[0].note[..]), (Mode::Exclusive, "not ours"));
    let listing = backend.list("", &Page::first(10)?).await?;
    assert_eq!(listing.names.iter().map(|n| n.name.as_str()).collect::<Vec<_>>(), ["shared"]);
    admin.delete("onelock/shared/694d7f3a2b", None).await?;
    assert_eq!(backend.wait(&ticket(&ours, place.token)).await?, Wake::Held(place.token.unwrap()));
    let left = admin.get("onelock/%zz/1", None).await?;
    assert_eq!(left.kvs().len(), 1);
    Ok(())
}

/// Two entries on one lease: the one that is renewed keeps the lease alive, the other one ends all the same.
#[tokio::test]
async fn an_entry_nobody_renews_ends_on_a_living_lease() -> Outcome {
    let server = Member::single(None).await?;
    let backend = client(&server.url()).await;
    let lease = Duration::from_secs(6);
    let (kept, silent) = (name("kept")?, name("silent")?);
    let (kept, silent) = (leased(exclusive(&kept)?, lease), leased(exclusive(&silent)?, lease));
    let (token, lost) = (held(&backend, &kept).await?.token, held(&backend, &silent).await?.token);
    let mut admin = server.admin().await?;
    let on = |kvs: &[etcd_client::KeyValue]| kvs[0].lease();
    let one = on(admin.get(key_of("onelock/kept/", &kept), None).await?.kvs());
    let two = on(admin.get(key_of("onelock/silent/", &silent), None).await?.kvs());
    assert_eq!(one, two, "one lease for both");
    let end = Instant::now() + PATIENCE;
    while !backend.inspect(&silent.name).await?.holders.is_empty() {
        assert!(Instant::now() < end, "it never ends");
        assert!(matches!(backend.renew(&[renewal(&kept, token)]).await.remove(0)?, Renewed::Held(_)));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(backend.renew(&[renewal(&silent, lost)]).await.remove(0)?, Renewed::NotHeld);
    assert_eq!(on(admin.get(key_of("onelock/kept/", &kept), None).await?.kvs()), one, "the lease lives");
    Ok(())
}

/// Tries for permits from several clients at the same moment: as many hold as there are permits, and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_tries_never_exceed_the_permits() -> Outcome {
    let server = Member::single(None).await?;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(client(&server.url()).await);
    }
    for round in 0..30 {
        let name = name(&format!("permits-{round}"))?;
        let start = Arc::new(tokio::sync::Barrier::new(12));
        let mut tasks = tokio::task::JoinSet::new();
        for i in 0..12 {
            let (backend, start) = (Arc::clone(&clients[i % 4]), Arc::clone(&start));
            let attempt = trying(request(&name, "p3".parse()?)?);
            tasks.spawn(async move {
                start.wait().await;
                backend.acquire(&attempt).await
            });
        }
        let mut holders = 0;
        while let Some(answer) = tasks.join_next().await {
            holders += usize::from(matches!(answer??, Standing::Held(_)));
        }
        assert_eq!(holders, 3, "round {round}");
        let line = clients[0].inspect(&name).await?;
        assert_eq!((line.holders.len(), line.waiters.len()), (3, 0), "round {round}");
    }
    Ok(())
}

/// A closed client leaves no lease behind but those that entries are on.
#[tokio::test]
async fn a_closed_client_gives_its_leases_back() -> Outcome {
    let server = Member::single(None).await?;
    let backend = client(&server.url()).await;
    let name = name("left")?;
    for seconds in [5, 10, 20] {
        let mut request = exclusive(&name)?;
        request.lease = Duration::from_secs(seconds);
        let token = held(&backend, &request).await?.token;
        backend.release(&ticket(&request, token)).await?;
    }
    let stays = exclusive(&name)?;
    held(&backend, &stays).await?;
    let mut leases = server.admin().await?.lease_client();
    assert_eq!(leases.leases().await?.leases().len(), 4, "one for each length");
    backend.close().await?;
    assert_eq!(leases.leases().await?.leases().len(), 1, "the one an entry is on");
    Ok(())
}

/// More joins of one name than may be under way at once stall, neither polled nor dropped. Their client goes on with them, so
/// one behind them has its turn.
#[tokio::test]
async fn joins_of_one_name_that_stall_hold_nobody_up() -> Outcome {
    let server = Member::single(None).await?;
    let locks = Locks::builder(client(&server.url()).await).build()?;
    let lock = locks.mutex("still")?;
    let guard = lock.acquire().await?;
    let mut still: Vec<_> = (0..40).map(|_| Box::pin(lock.try_acquire())).collect();
    for join in &mut still {
        assert!(futures_util::poll!(join).is_pending());
    }
    assert!(timeout(PATIENCE, lock.try_acquire()).await??.is_none());
    for join in still {
        assert!(join.await?.is_none());
    }
    guard.release().await?;
    locks.close(PATIENCE).await?;
    Ok(())
}
