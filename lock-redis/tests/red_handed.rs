//! A set-up that is known to be unsafe, caught in the act: sentinels promote a replica that never heard of the last grants.
//!
//! Replication is cut before the grants and the master dies right after them, so nothing is left to chance: the checker of
//! histories must find two holders at once. Tokens must grow all the same, and no guard may be deceived for longer than its
//! lease. With `replicas=1` the same course of events gives no lock twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::group::{backend, config, failover, is_watched};
use crate::common::{held, request};
use crate::harness::servers::{Group, Plan};
use onelock_conformance::history::{self, KnownHold, Violation};
use onelock_core::client::guard::{Guard, LossReason};
use onelock_core::client::retry::Retry;
use onelock_core::{
    Backend, BootClock, Clock as _, Error, ErrorKind, Locks, Mode, Settings, StoreUrl, Timestamp,
};
use onelock_redis::{RedisBackend, RedisConfig};
use tokio::task::JoinHandle;

/// How long a server may be silent before it is replaced.
const SILENCE: Duration = Duration::from_millis(1500);
/// Long enough that a failover fits into it on a busy machine.
const LEASE: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(60);
const LOCKS: u32 = 4;

async fn client(url: &str) -> Option<Locks> {
    let config = RedisConfig::try_from(url.parse::<StoreUrl>().unwrap()).unwrap();
    let backend = Arc::new(RedisBackend::connect(config).await.ok()?);
    let mut settings = Settings::default();
    (settings.ttl, settings.waiter_lease) = (LEASE, LEASE);
    Some(Locks::builder(backend).clock(Arc::new(BootClock)).settings(settings).build().unwrap())
}

/// Polls until there is something.
async fn soon_until<T>(what: &str, probe: impl AsyncFn() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < end, "{what}: not within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn nanos(time: Timestamp) -> u64 {
    u64::try_from(time.since_origin().as_nanos()).unwrap()
}

/// No replica follows the master from now on, and none can come back to it.
async fn cut_replication(group: &Group) {
    // The master asks for no password, and takes it ill to be given one.
    for replica in &group.admin[1..] {
        group.say(*replica, &["CONFIG", "SET", "masterauth", "asked-for-never-printed"]).await.unwrap();
    }
    let master = group.admin[0];
    group.say(master, &["CLIENT", "KILL", "TYPE", "replica"]).await.unwrap();
    soon_until("the replicas are cut off", async || {
        let said = group.say(master, &["INFO", "replication"]).await.unwrap().concat();
        said.contains("connected_slaves:0").then_some(())
    })
    .await;
}

/// What two clients got, one before the failover and one after it.
struct Course {
    old: Vec<JoinHandle<KnownHold>>,
    /// What the first client was told instead.
    errors: Vec<Error>,
    new: Vec<(Guard, KnownHold)>,
    /// A lock that the replicas knew of: until when the first client believed in it, and when the second one got it.
    early: (Guard, Option<Guard>),
    /// What must outlive the guards.
    _keep: (Group, Locks, Locks),
}

/// Grants by a master whose replicas are cut off; its death; grants by the one that takes its place.
async fn course(options: &str) -> Course {
    let mut plan = Plan::sentinel(SILENCE);
    plan.replicas = 2;
    let group = Group::start(plan).await.unwrap();
    is_watched(&group).await;
    let url = format!("{}{options}", group.url());
    let first = client(&url).await.unwrap();
    // From the time when the replicas were in step.
    let early = soon_until("a lock before the cut", async || {
        first.mutex("early").unwrap().try_acquire().await.ok().flatten()
    })
    .await;
    for replica in &group.admin[1..] {
        soon_until("a replica has it", async || {
            let keys = group.say(*replica, &["KEYS", "onelock:*:early"]).await.unwrap();
            (!keys.is_empty()).then_some(())
        })
        .await;
    }
    cut_replication(&group).await;
    let (mut old, mut errors) = (Vec::new(), Vec::new());
    for lock in 0..LOCKS {
        let asked = nanos(BootClock.now());
        // Half of them are renewed, half of them trust in a lease that was given once.
        let wanted = first.mutex(format!("red-{lock}")).unwrap().auto_renew(lock % 2 == 0);
        match wanted.try_acquire().await {
            Ok(guard) => {
                old.push(tokio::spawn(ended(taken(0, lock, asked, guard.expect("nobody else is there")))));
            }
            Err(error) => errors.push(error),
        }
    }
    group.servers[0].process.kill().unwrap();
    for replica in &group.admin[1..] {
        group.say(*replica, &["CONFIG", "SET", "masterauth", ""]).await.unwrap();
    }
    let second = soon_until("a replica is the master", async || {
        let second = client(&url).await?;
        second.inspect("early").await.ok()?;
        Some(second)
    })
    .await;
    let mut new = Vec::new();
    for lock in 0..LOCKS {
        let asked = nanos(BootClock.now());
        let wanted = second.mutex(format!("red-{lock}")).unwrap().retry(Retry::default().errors(u32::MAX));
        let guard = tokio::time::timeout(LIMIT, wanted.acquire()).await;
        new.push(taken(1, lock, asked, guard.expect("the new master serves").unwrap()));
    }
    let again = second.mutex("early").unwrap().try_acquire().await.ok().flatten();
    Course { old, errors, new, early: (early, again), _keep: (group, first, second) }
}

/// A hold that is not over yet.
fn taken(client: u32, lock: u32, asked: u64, guard: Guard) -> (Guard, KnownHold) {
    let (from, token) = (nanos(BootClock.now()), guard.token().unwrap().get());
    (guard, KnownHold { lock, client, mode: Mode::Exclusive, token, asked, from, until: u64::MAX })
}

/// Waits for the end of a hold, which must be told by its deadline, whatever the store says.
async fn ended((guard, hold): (Guard, KnownHold)) -> KnownHold {
    let mut deadline = guard.deadline();
    while let Some(next) = guard.renewed(deadline).await {
        deadline = next;
    }
    let (reason, now) = (guard.lost().await, BootClock.now());
    println!("lock {}: {}", hold.lock, guard.token().unwrap_err());
    assert!(!guard.is_held() && guard.token().is_err(), "lost, and believed in");
    // A renewal reaches the new master, which does not know it; a lease that is not renewed has its end.
    let renewed = hold.lock.is_multiple_of(2);
    assert!(reason == LossReason::Expired || (renewed && reason == LossReason::NotHeld), "{reason:?}");
    KnownHold { until: nanos(now.min(deadline)), ..hold }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_forgets_grants_is_caught() {
    let Course { old, errors, new, early, _keep } = course("").await;
    assert_eq!(errors.len(), 0, "{errors:?}");
    let mut holds = Vec::new();
    for end in old {
        holds.push(end.await.unwrap());
    }
    let now = nanos(BootClock.now());
    holds.extend(new.iter().map(|(guard, hold)| {
        assert!(guard.is_held(), "lock {}: the new holder was hurt", hold.lock);
        KnownHold { until: now, ..*hold }
    }));
    for lock in 0..LOCKS {
        let of_one: Vec<_> = holds.iter().filter(|hold| hold.lock == lock).copied().collect();
        match history::exclusion(&of_one) {
            Some(violation @ Violation::Overlap(..)) => println!("{violation}"),
            // A renewal may come to the new master before the second client does, if the failover takes so long.
            other => assert!(
                other.is_none() && lock.is_multiple_of(2),
                "lock {lock} was held twice, unseen: {other:?}"
            ),
        }
    }
    // What a resource that looks at tokens relies on holds all the same.
    assert_eq!(history::tokens(&holds), None);
    for (_, hold) in &new {
        assert!(failover(hold.token) >= 1, "token {} does not carry the epoch of the failover", hold.token);
    }
    assert!(early.1.is_none() || !early.0.is_held(), "what the replicas had is given twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_replica_asked_for_nothing_is_forgotten() {
    let Course { old, errors, new, early, _keep } = course("?replicas=1&replicas_timeout=500ms").await;
    assert_eq!(old.len(), 0, "granted without a replica");
    for error in &errors {
        println!("{error}");
        assert_eq!((error.kind(), error.is_unclear()), (ErrorKind::Unavailable, true), "{error}");
        assert!(error.to_string().contains("replicas"), "{error}");
    }
    assert_eq!(errors.len(), LOCKS as usize);
    let now = nanos(BootClock.now());
    let holds: Vec<_> = new.iter().map(|(_, hold)| KnownHold { until: now, ..*hold }).collect();
    assert_eq!(history::check(&holds), None);
    assert!(early.1.is_none() || !early.0.is_held(), "what the replicas had is given twice");
}

/// Where a missing counter of a single server starts, at the clock, is above the first epochs of a server behind sentinels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_over_a_failover_of_what_was_a_single_server() {
    let group = Group::start(Plan::sentinel(SILENCE)).await.unwrap();
    is_watched(&group).await;
    let taken = async |locks: &dyn Backend| {
        let ask = request("moved", "x");
        let token = held(locks.acquire(&ask).await.ok()?).token.get();
        locks.release(&ask.ticket()).await.ok()?;
        Some(token)
    };
    let single = format!("redis://{}?never_promoted=true", group.masters()[0]);
    taken(&*backend(&single).await).await.unwrap();
    soon_until("the replica has the counter", async || {
        let keys = group.say(group.admin[1], &["KEYS", "onelock:*:n"]).await.unwrap();
        (!keys.is_empty()).then_some(())
    })
    .await;
    cut_replication(&group).await;
    let old = backend(&group.url()).await;
    let mut last = 0;
    for _ in 0..3 {
        last = taken(&*old).await.unwrap();
    }
    group.servers[0].process.kill().unwrap();
    group.say(group.admin[1], &["CONFIG", "SET", "masterauth", ""]).await.unwrap();
    let next = soon_until("a replica is the master", async || {
        let new = RedisBackend::connect(config(&group.url())).await.ok()?;
        taken(&new).await
    })
    .await;
    assert!(next > last, "token {next} after {last}");
}
