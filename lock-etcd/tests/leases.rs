//! Which lease an entry is on, whatever becomes of the answers: no key of a living entry is on a revoked lease.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::server::{Admin as _, Member};
use etcd_client::GetOptions;
use futures_util::future::join_all;
use onelock_conformance::Verdict;
use onelock_conformance::ctx::{PATIENCE, exclusive, held, leased, name, renewal, request, ticket, waiting};
use onelock_conformance::faults::{Act, Fault, Link, Proxy, Trigger};
use onelock_conformance::harness::open_by;
use onelock_conformance::servers::Place;
use onelock_core::{Backend, Guard, LockName, Locks, Mode, Renewal, Renewed, Request, Settings, Wake};
use onelock_etcd::DRIVER;

/// How many locks one client holds.
const HELD: usize = 300;

pub(crate) async fn client(url: &str) -> Verdict<Arc<dyn Backend>> {
    Ok(open_by(&DRIVER, url).await?)
}

pub(crate) async fn behind(server: &Member, link: &Arc<Link>) -> Verdict<(Proxy, String)> {
    let proxy = Proxy::start(server.address(), link).await?;
    let url = format!("etcd://{}?request_timeout=400ms&connect_timeout=400ms", proxy.address());
    Ok((proxy, url))
}

pub(crate) fn locks(backend: Arc<dyn Backend>, ttl: Duration) -> Verdict<Locks> {
    let mut settings = Settings::default();
    (settings.ttl, settings.waiter_lease) = (ttl, ttl);
    Ok(Locks::builder(backend).settings(settings).build()?)
}

/// Every key of locks, with the lease it is on.
async fn keys(server: &Member) -> Verdict<Vec<(String, i64)>> {
    let all = GetOptions::new().with_prefix().with_keys_only();
    let keys = server.admin().await?.get("onelock/", Some(all)).await?;
    Ok(keys.kvs().iter().map(|kv| (kv.key_str().unwrap().to_owned(), kv.lease())).collect())
}

async fn leases_of(server: &Member) -> Verdict<BTreeSet<i64>> {
    Ok(keys(server).await?.into_iter().map(|(_, lease)| lease).collect())
}

/// Renews until every entry is answered to hold; a failed renewal is no loss.
async fn renewed(backend: &Arc<dyn Backend>, due: &[Renewal]) {
    let end = Instant::now() + PATIENCE;
    loop {
        let answers = backend.renew(due).await;
        assert!(answers.iter().all(|answer| !matches!(answer, Ok(Renewed::NotHeld))), "an entry is gone");
        if answers.iter().all(|answer| matches!(answer, Ok(Renewed::Held(_)))) {
            return;
        }
        assert!(Instant::now() < end, "{answers:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn crowd(backend: &Arc<dyn Backend>, lease: Duration) -> Verdict<Vec<Renewal>> {
    let requests: Vec<_> = (0..HELD)
        .map(|i| Ok(leased(exclusive(&name(&format!("crowd-{i}"))?)?, lease)))
        .collect::<Verdict<_>>()?;
    let grants = join_all(requests.iter().map(|request| held(backend, request))).await;
    let due = requests.iter().zip(grants).map(|(request, grant)| Ok(renewal(request, grant?.token)));
    due.collect()
}

/// A client is closed while its join is under way: an entry that this has removed is not answered as held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_that_outlives_its_client_holds_nothing() -> Verdict {
    let server = Member::single(None).await?;
    let link = Link::new();
    let proxy = Proxy::start(server.address(), &link).await?;
    let backend = client(&format!("etcd://{}?request_timeout=60s", proxy.address())).await?;
    // Its lease is there.
    let first = exclusive(&name("first")?)?;
    backend.release(&ticket(&first, held(&backend, &first).await?.token)).await?;
    let request = exclusive(&name("closing")?)?;
    let pattern = request.name.to_string().into_bytes();
    link.arm(Trigger { pattern, nth: 1, act: Act::HoldReply });
    let joined = tokio::spawn({
        let (backend, request) = (Arc::clone(&backend), request.clone());
        async move { backend.acquire(&request).await }
    });
    let end = Instant::now() + PATIENCE;
    while keys(&server).await?.is_empty() {
        assert!(Instant::now() < end, "it has not joined");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let closed = tokio::spawn(async move { backend.close().await });
    while !keys(&server).await?.is_empty() {
        assert!(Instant::now() < end, "it is not removed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    link.let_go();
    let joined = joined.await?;
    assert!(joined.is_err(), "{joined:?}");
    closed.await??;
    Ok(())
}

/// Replies to one client stall or are lost, again and again, and then come one burst after the other, while it holds 300
/// locks and joins others whose outcome is unclear: all are kept, on the lease that they were on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_and_lost_replies_move_no_held_lock() -> Verdict {
    let server = Member::single(None).await?;
    let link = Link::new();
    let (_proxy, url) = behind(&server, &link).await?;
    let backend = client(&url).await?;
    let due = crowd(&backend, Duration::from_secs(60)).await?;
    renewed(&backend, &due).await;
    let before = keys(&server).await?;
    assert_eq!(before.len(), HELD);
    let rounds = [
        Fault::StallReplies,
        Fault::LoseReplies,
        Fault::StallReplies,
        Fault::Stall,
        Fault::StallRequests,
        Fault::CutAfter(2_000),
        Fault::HalfOpen,
        Fault::StallReplies,
    ];
    for (i, fault) in rounds.into_iter().enumerate() {
        link.set(fault);
        // A renewal of all, and joins beside it, none of which may be answered.
        let join = leased(exclusive(&name(&format!("side-{i}"))?)?, due[0].lease);
        let (answers, joined) = tokio::join!(backend.renew(&due), backend.acquire(&join));
        let lost = answers.iter().filter(|answer| matches!(answer, Ok(Renewed::NotHeld))).count();
        assert_eq!(lost, 0, "{fault:?}");
        link.heal();
        renewed(&backend, &due).await;
        drop(joined);
        released(&backend, &join).await;
    }
    assert!(link.hits.get() > 0, "nothing was late or lost");
    // What came late has been taken out, though their lease is kept alive by others.
    let end = Instant::now() + PATIENCE;
    while keys(&server).await? != before {
        assert!(Instant::now() < end, "keys {:?}", keys(&server).await?.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    renewed(&backend, &due).await;
    Ok(())
}

/// The same through the client above: 300 guards, and nobody else holds what one of them holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_outlive_late_replies() -> Verdict {
    let server = Member::single(None).await?;
    let link = Link::new();
    let (_proxy, url) = behind(&server, &link).await?;
    let ttl = Duration::from_secs(15);
    let (ours, other) = (locks(client(&url).await?, ttl)?, locks(client(&server.url()).await?, ttl)?);
    let names: Vec<_> = (0..HELD).map(|i| format!("guard-{i}")).collect();
    let all = names.iter().map(|name| ours.mutex(name)).collect::<Result<Vec<_>, _>>()?;
    let guards = join_all(all.iter().map(|lock| lock.acquire())).await;
    let guards: Vec<Guard> = guards.into_iter().collect::<Result<_, _>>()?;
    let mut waiters = tokio::task::JoinSet::new();
    for name in &names {
        let lock = other.mutex(name)?;
        waiters.spawn(async move { lock.acquire().await });
    }
    let side = ours.mutex("side")?;
    for fault in [Fault::StallReplies, Fault::LoseReplies, Fault::StallReplies] {
        let deadlines: Vec<_> = guards.iter().map(Guard::deadline).collect();
        link.set(fault);
        // Its outcome is unclear, and so is that of whatever is renewed meanwhile.
        let error = side.try_acquire().await.unwrap_err();
        assert!(error.is_unclear(), "{error}");
        tokio::time::sleep(ttl / 10).await;
        link.heal();
        for (guard, deadline) in guards.iter().zip(deadlines) {
            assert!(guard.renewed(deadline).await.is_some(), "{} is lost", guard.name());
        }
    }
    assert!(waiters.try_join_next().is_none(), "two holders");
    assert!(guards.iter().all(Guard::is_held));
    for released in join_all(guards.into_iter().map(Guard::release)).await {
        released?;
    }
    while let Some(guard) = waiters.join_next().await {
        drop(guard??);
    }
    Ok(())
}

/// A waiter that has come to hold, whose renewal moves it to a holder's lease.
async fn promoted(
    server: &Member,
    backend: &Arc<dyn Backend>,
    name: &LockName,
    count: usize,
) -> Verdict<Vec<Renewal>> {
    let front = client(&server.url()).await?;
    let first = exclusive(name)?;
    let token = held(&front, &first).await?.token;
    let mut due = Vec::new();
    for _ in 0..count {
        let asked: Request = request(name, Mode::Shared)?;
        let asked = asked.lease(Duration::from_secs(60)).waiter_lease(Duration::from_secs(20));
        let place = waiting(backend, &asked).await?;
        due.push(renewal(&asked, place.token));
    }
    front.release(&ticket(&first, token)).await?;
    for renewal in &due {
        assert_eq!(backend.wait(&renewal.ticket).await?, Wake::Held(renewal.ticket.token.unwrap()));
    }
    Ok(due)
}

/// The answer to a move is lost, its request comes late, or both: whichever lease the entry is on, neither is revoked, and the
/// next renewal finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_with_an_unclear_outcome_loses_nothing() -> Verdict {
    let server = Member::single(None).await?;
    let acts = [Act::HoldReply, Act::LoseReply, Act::HoldRequest, Act::Reset];
    for (i, act) in acts.into_iter().enumerate() {
        let link = Link::new();
        let (_proxy, url) = behind(&server, &link).await?;
        let backend = client(&url).await?;
        let moves = name(&format!("moves-{i}"))?;
        let due = promoted(&server, &backend, &moves, 1).await?;
        let waiters_lease = leases_of(&server).await?;
        // A renewal names the key once when it reads it; what names it next is the move.
        let key = format!("r-{}", due[0].ticket.holder.to_hex());
        link.arm(Trigger { pattern: key.into_bytes(), nth: 2, act });
        let answer = backend.renew(&due).await.remove(0);
        assert!(!matches!(answer, Ok(Renewed::NotHeld)), "{act:?}: {answer:?}");
        link.struck().await;
        // A join beside it, whose outcome may be unclear as well.
        let side = leased(exclusive(&name(&format!("side-{i}"))?)?, due[0].lease);
        let _ = backend.acquire(&side).await;
        link.let_go();
        released(&backend, &side).await;
        renewed(&backend, &due).await;
        renewed(&backend, &due).await;
        let (_, on) = keys(&server).await?.pop().unwrap();
        assert!(!waiters_lease.contains(&on), "{act:?}: it is on the lease of waiters");
        backend.release(&due[0].ticket).await?;
        backend.close().await?;
    }
    Ok(())
}

/// Gives back what a join may have got, as the client above does: until it is answered.
async fn released(backend: &Arc<dyn Backend>, request: &Request) {
    let end = Instant::now() + PATIENCE;
    while backend.release(&request.ticket()).await.is_err() {
        assert!(Instant::now() < end, "the link does not heal");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Readers of one client that are promoted together, more than fit into one transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_promoted_together_all_hold() -> Verdict {
    let server = Member::single(None).await?;
    let backend = client(&server.url()).await?;
    let due = promoted(&server, &backend, &name("readers")?, 200).await?;
    let answers = backend.renew(&due).await;
    let held = answers.iter().filter(|answer| matches!(answer, Ok(Renewed::Held(_)))).count();
    assert_eq!(held, 200, "{:?}", answers.iter().find(|answer| !matches!(answer, Ok(Renewed::Held(_)))));
    assert_eq!(leases_of(&server).await?.len(), 1, "all on one holder's lease");
    Ok(())
}

/// Servers that take fewer operations or bytes in a request than the default: a renewal of many learns how many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_limits_are_learnt() -> Verdict {
    for limit in ["--max-txn-ops=10", "--max-request-bytes=2000"] {
        let server = Member::with(Place::Memory, None, &[limit.to_owned()]).await?;
        let backend = client(&server.url()).await?;
        let due = crowd(&backend, Duration::from_secs(20)).await?;
        renewed(&backend, &due).await;
        let before = requests(&server).await?;
        renewed(&backend, &due).await;
        let again = requests(&server).await? - before;
        // Ten at a time and a keep-alive, and no refusal any more; some forty bytes of a key.
        assert!(again <= 1 + 75, "{limit}: {again} requests");
        let waiters = promoted(&server, &backend, &name("some")?, 20).await?;
        renewed(&backend, &waiters).await;
    }
    // A limit that a single join cannot keep is named.
    let server = Member::with(Place::Memory, None, &["--max-txn-ops=1".to_owned()]).await?;
    let backend = client(&server.url()).await?;
    let error = backend.acquire(&exclusive(&name("one")?)?).await.unwrap_err();
    assert!(error.to_string().contains("--max-txn-ops") && !error.is_unclear(), "{error}");
    Ok(())
}

async fn requests(server: &Member) -> Verdict<u64> {
    Ok(server.received().await?.into_iter().map(|(_, count)| count).sum())
}
