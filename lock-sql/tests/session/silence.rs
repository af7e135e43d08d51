//! Renewals of one client go together, and one of them is not answered: the others are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::{FutureExt as _, poll};
use onelock_conformance::faults::{Fault, Link, Proxy};
use onelock_core::{Backend, HolderId, LockName, Mode, Release, Renewal, Renewed, Request, Standing, Wake};

use crate::server::{PATIENCE, Server, open, soon, until_waiting};
use crate::way::{Blow, Way};

/// Far more than a renewal needs, and far less than a request may take here.
const BOUND: Duration = Duration::from_secs(20);

/// The leases are as short as the tests are.
const PATIENT: &str = "&request_timeout=5m";

fn request(name: &str) -> Request {
    let (name, holder) = (LockName::new(name).unwrap(), HolderId::random().unwrap());
    Request::new(name, holder, Mode::Exclusive, Duration::from_secs(3))
}

async fn take(store: &Arc<dyn Backend>, name: &str) -> Request {
    let request = request(name);
    assert!(matches!(store.acquire(&request).await.unwrap(), Standing::Held(_)));
    request
}

async fn wait_for(store: &Arc<dyn Backend>, name: &str) -> Request {
    let request = request(name);
    assert!(matches!(store.acquire(&request).await.unwrap(), Standing::Waiting(_)));
    request
}

/// What renewals answer that are sent together; the first is the one that matters.
async fn renew(store: &Arc<dyn Backend>, all: &[&Request]) -> onelock_core::Result<Renewed> {
    let due: Vec<_> = all.iter().map(|r| Renewal::new(r.ticket(), r.lease, r.waiter_lease)).collect();
    let renewed = tokio::time::timeout(BOUND, store.renew(&due)).await;
    renewed.expect("it waits for the answer to another renewal").remove(0)
}

/// The connection of one lock falls silent.
pub(crate) async fn a_session_without_an_answer_keeps_no_other_lease<S: Server>(server: &S) {
    let way = Way::to(server.at()).await;
    let locks = open::<S>(&S::url_at(way.port(), "&ttl=3s")).await.unwrap();
    let one = locks.mutex("one").unwrap().acquire().await.unwrap();
    let made = way.count();
    let other = locks.mutex("other").unwrap().acquire().await.unwrap();
    way.strike(made..way.count(), Blow::Silence).await;
    let mut seen = one.deadline();
    soon(other.lost()).await;
    for _ in 0..3 {
        seen = soon(one.renewed(seen)).await.expect("lost with the other one");
    }
    one.release().await.unwrap();
}

/// The connection that looks at those who wait falls silent.
pub(crate) async fn a_look_without_an_answer_keeps_no_lease<S: Server>(server: &S) {
    let way = Way::to(server.at()).await;
    let there = server.open("").await;
    let _other = take(there.backend(), "other").await;
    let locks = open::<S>(&S::url_at(way.port(), PATIENT)).await.unwrap();
    let looks = way.count() - 1;
    let (one, other) = (take(locks.backend(), "one").await, wait_for(locks.backend(), "other").await);
    way.strike(looks..looks + 1, Blow::Silence).await;
    let renewed = renew(locks.backend(), &[&one, &other]).await;
    assert!(matches!(renewed, Ok(Renewed::Held(_))), "{renewed:?}");
}

/// A wait that nobody polls is granted the lock.
pub(crate) async fn a_wait_that_stalls_keeps_no_other_lease<S: Server>(server: &S) {
    let (there, locks) = (server.open("").await, server.open(PATIENT).await);
    let before = take(there.backend(), "other").await;
    let (one, other) = (take(locks.backend(), "one").await, wait_for(locks.backend(), "other").await);
    let ticket = other.ticket();
    let mut wait = locks.backend().wait(&ticket);
    assert!(poll!(&mut wait).is_pending());
    assert_eq!(there.backend().release(&before.ticket()).await.unwrap(), Release::Released);
    until_waiting(server, 0).await;
    let renewed = renew(locks.backend(), &[&one, &other]).await;
    assert!(matches!(renewed, Ok(Renewed::Held(_))), "{renewed:?}");
    // It learns of the grant, or that it came too late, once it is polled.
    let _ = wait.now_or_never();
}

/// The connection of a waiter breaks, and the server does not learn of it: the place is given up, where it would hold in its turn for
/// nobody.
pub(crate) async fn a_waiter_that_lost_its_connection_leaves_the_queue<S: Server>(server: &S) {
    let way = Way::to(server.at()).await;
    let there = server.open("").await;
    let holder = there.mutex("other").unwrap().acquire().await.unwrap();
    let locks = open::<S>(&S::url_at(way.port(), "")).await.unwrap();
    let _one = take(locks.backend(), "one").await;
    let made = way.count();
    let waiter = wait_for(locks.backend(), "other").await;
    way.strike(made..way.count(), Blow::Break).await;
    let gone = async {
        while !matches!(renew(locks.backend(), &[&waiter]).await, Ok(Renewed::NotHeld)) {
            let _ = locks.backend().wait(&waiter.ticket()).await;
        }
    };
    soon(gone).await;
    until_waiting(server, 0).await;
    assert!(holder.is_held());
}

/// The connection of a waiter breaks, its session cannot be ended, and it is granted the lock, for nobody: it is ended once that can be.
pub(crate) async fn a_grant_for_nobody_is_given_up<S: Server>(server: &S) {
    let way = Way::to(server.at()).await;
    let there = server.open("").await;
    let before = take(there.backend(), "other").await;
    let locks = open::<S>(&S::url_at(way.port(), "&request_timeout=1s")).await.unwrap();
    let looks = way.count() - 1;
    let _one = take(locks.backend(), "one").await;
    let made = way.count();
    let mut waiter = request("other");
    waiter.lease = Duration::from_secs(600);
    assert!(matches!(locks.backend().acquire(&waiter).await.unwrap(), Standing::Waiting(_)));
    way.strike(looks..looks + 1, Blow::Silence).await;
    way.strike(made..way.count(), Blow::Break).await;
    soon(locks.backend().wait(&waiter.ticket())).await.unwrap_err();
    assert_eq!(until_waiting(server, 1).await.len(), 1, "this shows nothing");
    assert_eq!(there.backend().release(&before.ticket()).await.unwrap(), Release::Released);
    let gone = async { while !matches!(renew(locks.backend(), &[&waiter]).await, Ok(Renewed::NotHeld)) {} };
    soon(gone).await;
    let next = there.backend().acquire(&request("other")).await.unwrap();
    assert!(matches!(next, Standing::Held(_)), "{next:?}");
}

/// The connection of a holder that has waited for longer than its lease breaks: the server has not ended that session for having been
/// idle, and the release does.
pub(crate) async fn who_has_waited_long_gives_back<S: Server>(server: &S) {
    let way = Way::to(server.at()).await;
    let there = server.open("").await;
    let before = take(there.backend(), "other").await;
    let locks = open::<S>(&S::url_at(way.port(), "")).await.unwrap();
    let _one = take(locks.backend(), "one").await;
    let (made, begun) = (way.count(), Instant::now());
    let next = wait_for(locks.backend(), "other").await;
    while begun.elapsed() <= next.lease {
        let renewed = renew(there.backend(), &[&before]).await;
        assert!(matches!(renewed, Ok(Renewed::Held(_))), "{renewed:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    there.backend().release(&before.ticket()).await.unwrap();
    soon(locks.backend().wait(&next.ticket())).await.unwrap();
    way.strike(made..way.count(), Blow::Break).await;
    assert_eq!(locks.backend().release(&next.ticket()).await.unwrap(), Release::Released);
}

/// The leases and the patience of those who meet a server that is away.
const HASTY: &str = "&ttl=1s&connections=1&request_timeout=1s&connect_timeout=1s";

/// The server is away for longer than a release is tried: what was not given back keeps its connection from no later lock.
pub(crate) async fn a_release_that_was_given_up_keeps_no_connection<S: Server>(server: &S) {
    let link = Link::new();
    let proxy = Proxy::start(([127, 0, 0, 1], server.at()).into(), &link).await.unwrap();
    let locks = open::<S>(&S::url_at(proxy.address().port(), HASTY)).await.unwrap();
    let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
    link.set(Fault::HalfOpen);
    soon(guard.release()).await.unwrap_err();
    link.heal();
    let end = Instant::now() + PATIENCE;
    loop {
        let tried = locks.mutex("n").unwrap().try_acquire().await;
        if matches!(tried, Ok(Some(_))) {
            return;
        }
        assert!(Instant::now() < end, "{tried:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Many look at once while the server is silent: each learns so, and none waits until all before it have.
pub(crate) async fn looks_without_an_answer_end_together<S: Server>(server: &S) {
    let link = Link::new();
    let proxy = Proxy::start(([127, 0, 0, 1], server.at()).into(), &link).await.unwrap();
    let locks = open::<S>(&S::url_at(proxy.address().port(), HASTY)).await.unwrap();
    link.set(Fault::Stall);
    let looks = join_all((0..60).map(|_| locks.inspect("n")));
    let looks = tokio::time::timeout(BOUND, looks).await.expect("they wait for one another");
    assert!(looks.iter().all(Result::is_err), "this shows nothing");
}

/// Many look at once while the server is slow: each has its turn, though that comes later than an answer may.
pub(crate) async fn looks_at_a_slow_server_have_their_turn<S: Server>(server: &S) {
    let link = Link::new();
    let proxy = Proxy::start(([127, 0, 0, 1], server.at()).into(), &link).await.unwrap();
    let locks = open::<S>(&S::url_at(proxy.address().port(), "&request_timeout=2s")).await.unwrap();
    link.set(Fault::DelayReplies(Duration::from_millis(100)));
    for look in join_all((0..60).map(|_| locks.inspect("n"))).await {
        look.unwrap();
    }
}

/// The connection that looks falls silent during a look. Those that came when it had waited for half of its time need not fail with it: the
/// next one looks by another connection.
pub(crate) async fn a_look_without_an_answer_fails_nobody_who_came_later<S: Server>(server: &S) {
    let limit = Duration::from_secs(6);
    let way = Way::to(server.at()).await;
    let locks = open::<S>(&S::url_at(way.port(), "&request_timeout=6s")).await.unwrap();
    let looks = way.count() - 1;
    way.strike(looks..looks + 1, Blow::Silence).await;
    let look = || {
        let locks = locks.clone();
        tokio::spawn(async move { locks.inspect("n").await })
    };
    let (begun, mut first, mut later) = (Instant::now(), look(), Vec::new());
    let failed = loop {
        if let Ok(failed) = tokio::time::timeout(Duration::from_millis(200), &mut first).await {
            break failed.unwrap();
        }
        if begun.elapsed() > limit / 2 {
            later.push(look());
        }
        assert!(begun.elapsed() < PATIENCE, "it waits for ever");
    };
    assert!(failed.is_err() && !later.is_empty(), "this shows nothing: {failed:?}, {later:?}");
    for look in later {
        soon(look).await.unwrap().unwrap();
    }
}

/// The server has put a waiter into its queue, and the client learns nothing of it and closes the connection: who asks again waits by a
/// connection that is there.
pub(crate) async fn who_asks_again_has_a_place<S: Server>(server: &S) {
    let way = Way::to(server.at()).await;
    let there = server.open("").await;
    let [mut before, mut waiter] = [request("other"), request("other")];
    (before.lease, waiter.lease) = (Duration::from_secs(600), Duration::from_secs(600));
    assert!(matches!(there.backend().acquire(&before).await.unwrap(), Standing::Held(_)));
    let locks = open::<S>(&S::url_at(way.port(), "&request_timeout=3s")).await.unwrap();
    let looks = way.count() - 1;
    way.strike(looks..looks + 1, Blow::Silence).await;
    let first = {
        let (locks, waiter) = (locks.clone(), waiter.clone());
        tokio::spawn(async move { locks.backend().acquire(&waiter).await })
    };
    until_waiting(server, 1).await;
    way.strike(0..way.count(), Blow::Silence).await;
    let unclear = soon(first).await.unwrap().unwrap_err();
    assert!(unclear.is_unclear(), "{unclear}");
    assert_eq!(until_waiting(server, 1).await.len(), 1, "this shows nothing");
    let again = soon(locks.backend().acquire(&waiter)).await;
    assert!(matches!(again, Ok(Standing::Waiting(_))), "{again:?}");
    assert_eq!(there.backend().release(&before.ticket()).await.unwrap(), Release::Released);
    let woken = soon(locks.backend().wait(&waiter.ticket())).await;
    assert!(matches!(woken, Ok(Wake::Held(_))), "{woken:?}");
}

/// The caller of a release leaves before the answer, and it is repeated: nothing is held any more.
pub(crate) async fn a_release_whose_caller_left_is_repeated<S: Server>(server: &S) {
    let link = Link::new();
    let proxy = Proxy::start(([127, 0, 0, 1], server.at()).into(), &link).await.unwrap();
    let locks = open::<S>(&S::url_at(proxy.address().port(), "")).await.unwrap();
    let ticket = take(locks.backend(), "one").await.ticket();
    link.set(Fault::StallReplies);
    let mut first = locks.backend().release(&ticket);
    assert!(poll!(&mut first).is_pending());
    drop(first);
    link.heal();
    assert_eq!(soon(locks.backend().release(&ticket)).await.unwrap(), Release::NotHeld);
}

/// Nothing that a release asked was answered, and the server has ended the session since: the next one says that nothing is held.
pub(crate) async fn a_release_that_is_repeated_finds_nothing_held<S: Server>(server: &S) {
    let way = Way::to(server.at()).await;
    let locks = open::<S>(&S::url_at(way.port(), "&request_timeout=1s")).await.unwrap();
    let ticket = take(locks.backend(), "one").await.ticket();
    way.strike(0..way.count(), Blow::Silence).await;
    soon(locks.backend().release(&ticket)).await.unwrap_err();
    // The one that looks has no time of idleness, and stays. A lock is free a moment before its session is gone.
    let end = Instant::now() + PATIENCE;
    while server.sessions().await.len() > 1 {
        assert!(Instant::now() < end, "{:?} are there", server.sessions().await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(soon(locks.backend().release(&ticket)).await.unwrap(), Release::NotHeld);
}

/// Sessions have been idle for longer than their leases, so the server has ended them, and the connection that looks falls silent: neither a
/// release nor the next lock needs it.
pub(crate) async fn what_ended_for_being_idle_needs_no_look<S: Server>(server: &S) {
    let way = Way::to(server.at()).await;
    let locks = open::<S>(&S::url_at(way.port(), PATIENT)).await.unwrap();
    let looks = way.count() - 1;
    let (given, held) = (take(locks.backend(), "given").await, take(locks.backend(), "held").await);
    assert_eq!(locks.backend().release(&given.ticket()).await.unwrap(), Release::Released);
    let answered = Instant::now();
    while answered.elapsed() <= held.lease {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    way.strike(looks..looks + 1, Blow::Silence).await;
    way.strike(0..way.count(), Blow::Break).await;
    assert_eq!(soon(locks.backend().release(&held.ticket())).await.unwrap(), Release::NotHeld);
    let next = soon(locks.backend().acquire(&request("given"))).await;
    assert!(matches!(next, Ok(Standing::Held(_))), "{next:?}");
}
