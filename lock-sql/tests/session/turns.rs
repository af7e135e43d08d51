//! More who want a lock than a client has sessions.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use onelock_conformance::faults::{Act, Fault, Link, Proxy, Trigger};
use onelock_core::{ErrorKind, FencingToken, Locks, Result};

use crate::server::{PATIENCE, Server, acquire, open, soon, until_waiting};

/// What holders of locks say, to see that there is one at a time.
#[derive(Clone, Default)]
struct Resource(Arc<Mutex<HashMap<String, Seen>>>);

/// Whether somebody is inside, and the last number.
type Seen = (bool, Option<FencingToken>);

impl Resource {
    fn enter(&self, name: &str, token: FencingToken) {
        let mut all = self.0.lock().unwrap();
        let (inside, last) = all.entry(name.to_owned()).or_default();
        assert!(!*inside, "two hold {name}");
        assert!(Some(token) > *last, "token {token} of {name} after {last:?}");
        (*inside, *last) = (true, Some(token));
    }

    fn leave(&self, name: &str) {
        self.0.lock().unwrap().get_mut(name).unwrap().0 = false;
    }
}

/// Takes a lock and gives it back; says whether the server had it confirmed.
async fn cycle(locks: &Locks, name: &str, resource: &Resource) -> Result<()> {
    let guard = locks.mutex(name)?.acquire().await?;
    resource.enter(name, guard.token()?);
    tokio::task::yield_now().await;
    assert!(guard.is_held());
    resource.leave(name);
    guard.release().await
}

/// What becomes of an unlock is a matter of the way to the server.
fn of_the_way(error: &onelock_core::Error) -> bool {
    matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Full | ErrorKind::Lost)
}

async fn until_free(server: &impl Server) {
    let end = Instant::now() + PATIENCE;
    loop {
        let locks = server.locks().await;
        if locks.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "left: {locks:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Some have a lock of their own and some share one, with two sessions for all of them.
pub(crate) async fn few_sessions_serve_many<S: Server>(server: &S) {
    let link = Link::new();
    let proxy = Proxy::start(([127, 0, 0, 1], server.at()).into(), &link).await.unwrap();
    let locks = open::<S>(&S::url_at(proxy.address().port(), "&connections=2")).await.unwrap();
    // An unlock is late.
    link.arm(Trigger { pattern: S::GIVE.to_vec(), nth: 1, act: Act::HoldReply });
    let resource = Resource::default();
    let tasks: Vec<_> = ["1", "2", "3", "4", "5", "6", "all", "all", "all"]
        .into_iter()
        .map(|name| {
            let (locks, resource) = (locks.clone(), resource.clone());
            tokio::spawn(async move {
                for _ in 0..40 {
                    cycle(&locks, name, &resource).await.unwrap();
                }
            })
        })
        .collect();
    soon(link.struck()).await;
    link.let_go();
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!(server.locks().await, Vec::<String>::new());
}

/// A lock that somebody else holds is waited for in the server's queue, or not at all.
pub(crate) async fn a_busy_lock_is_waited_for_by_one_connection<S: Server>(server: &S) {
    let (other, locks) = (server.open("").await, server.open("&connections=1").await);
    let busy = other.mutex("busy").unwrap().acquire().await.unwrap();
    for round in 0..5 {
        let first = locks.mutex("first").unwrap().acquire().await.unwrap();
        let lock = locks.mutex("busy").unwrap();
        let tried = tokio::spawn(async move { lock.try_acquire().await });
        if round % 2 == 0 {
            // Whether it stands in line by now or not, the answer is the same.
            tokio::task::yield_now().await;
        }
        first.release().await.unwrap();
        assert!(soon(tried).await.unwrap().unwrap().is_none());
    }
    let first = locks.mutex("first").unwrap().acquire().await.unwrap();
    let waiter = acquire(&locks, "busy");
    first.release().await.unwrap();
    until_waiting(server, 1).await;
    let before = busy.token().unwrap();
    busy.release().await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    assert!(guard.token().unwrap() > before);
    guard.release().await.unwrap();
    assert_eq!(server.locks().await, Vec::<String>::new());
}

/// What befalls one of the unlocks; its whole client too, where there is a fault.
const BLOWS: [(Act, Option<Fault>); 7] = [
    (Act::HoldRequest, None),
    (Act::HoldReply, None),
    (Act::LoseReply, None),
    (Act::Reset, None),
    (Act::HoldReply, Some(Fault::StallReplies)),
    (Act::HoldReply, Some(Fault::LoseReplies)),
    (Act::LoseReply, Some(Fault::HalfOpen)),
];

/// An unlock is lost, or its answer, or it is late: nobody holds what another holds (on connections that live), and in the end
/// all is free and goes on.
pub(crate) async fn a_lost_unlock_harms_nobody<S: Server>(server: &S) {
    for (act, fault) in BLOWS {
        let link = Link::new();
        let proxy = Proxy::start(([127, 0, 0, 1], server.at()).into(), &link).await.unwrap();
        let url = S::url_at(proxy.address().port(), "&connections=2&request_timeout=1s&ttl=30s");
        let (locks, direct) = (open::<S>(&url).await.unwrap(), server.open("&ttl=30s").await);
        let (resource, stop) = (Resource::default(), Arc::new(AtomicBool::new(false)));
        // The server frees what a connection held as soon as that is gone, and a half-open one shows its client nothing.
        let theirs = if fault == Some(Fault::HalfOpen) { Resource::default() } else { resource.clone() };
        let tasks: Vec<_> = [&locks, &locks, &locks, &locks, &locks, &locks, &direct, &direct]
            .into_iter()
            .cloned()
            .enumerate()
            .map(|(i, locks)| {
                let resource = if i < 6 { &theirs } else { &resource };
                let (resource, stop) = (resource.clone(), stop.clone());
                let name = ["a", "b", "c"][i % 3];
                tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        if let Err(error) = cycle(&locks, name, &resource).await {
                            // Those who come by another way lose nothing.
                            assert!(i < 6 && of_the_way(&error), "{i}: {error}");
                        }
                    }
                    // What was late has come, or never will.
                    for _ in 0..5 {
                        let mut end = cycle(&locks, name, &resource).await;
                        while i < 6 && end.as_ref().is_err_and(of_the_way) {
                            end = cycle(&locks, name, &resource).await;
                        }
                        end.unwrap();
                    }
                })
            })
            .collect();
        link.arm(Trigger { pattern: S::GIVE.to_vec(), nth: 5, act });
        soon(link.struck()).await;
        if let Some(fault) = fault {
            link.set(fault);
        }
        // For longer than a request may take.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        link.let_go();
        link.heal();
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            soon(task).await.unwrap();
        }
        locks.close(PATIENCE).await.unwrap();
        until_free(server).await;
    }
}

/// Two clients would have forty sessions, and make do with the few that the server gives them.
pub(crate) async fn a_refused_connection_is_waited_for(server: &impl Server) {
    let clients = [server.open("").await, server.open("").await];
    for _ in 0..3 {
        let cycle = |client: &Locks, i: usize| {
            let lock = client.mutex(format!("few-{i}")).unwrap();
            async move { lock.try_acquire().await?.expect("nobody else has it").release().await }
        };
        let cycles = (0..40).map(|i| cycle(&clients[i % 2], i));
        for done in futures_util::future::join_all(cycles).await {
            done.unwrap();
        }
    }
}
