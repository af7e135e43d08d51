//! Masters that die, stall, come back and change places, under clients at work.

use std::sync::Arc;
use std::time::Duration;

use crate::common::group::{LIMIT, SILENCE, backend, config, failover, group, is_watched, owner, soon_until};
use crate::common::{HOUR, PATIENCE, held, renew_one, request, soon, told, waits};
use crate::harness::servers::Plan;
use futures_util::future::join_all;
use onelock_conformance::churn::{Churn, Report};
use onelock_conformance::history;
use onelock_core::{Backend, BootClock, ErrorKind, Locks, Renewal, Renewed, Settings, Wake};
use onelock_redis::RedisBackend;

async fn clients(url: &str) -> Vec<Locks> {
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut settings = Settings::default();
        (settings.ttl, settings.waiter_lease) = (Duration::from_secs(10), Duration::from_secs(10));
        let builder = Locks::builder(backend(url).await).clock(Arc::new(BootClock)).settings(settings);
        clients.push(builder.build().unwrap());
    }
    clients
}

/// Churns over clients at `url`, breaks something, and says what happened.
async fn churned(url: &str, seed: u64, fault: impl AsyncFnOnce()) -> Report {
    let churn = Churn::start(clients(url).await, "failover", seed).await.unwrap();
    churn.goes_on(20, LIMIT).await.unwrap();
    let since = std::time::Instant::now();
    fault().await;
    churn.goes_on(20, LIMIT).await.unwrap();
    let report = churn.stop().await.unwrap();
    println!(
        "after {:?}: {} holds, {} lost, errors {:?}, kept {}, lost {}, overlap: {}",
        since.elapsed(),
        report.holds.len(),
        report.lost,
        report.errors,
        report.kept,
        report.kept_lost,
        report.has_overlap()
    );
    report
}

/// What holds although replication is asynchronous: a resource that looks at tokens is safe, and no guard is deceived.
fn fenced(report: &Report) {
    if let Some(violation) = history::tokens(&report.holds) {
        panic!("{violation}");
    }
    assert!(report.deceived.is_empty(), "{:?}", report.deceived);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_replace_a_dead_master_and_clients_go_on() {
    let group = group(Plan::sentinel(SILENCE)).await;
    is_watched(&group).await;
    let report = churned(&group.url(), 1, async || group.servers[0].process.kill().unwrap()).await;
    fenced(&report);
    let last = report.holds.iter().max_by_key(|hold| hold.from).unwrap().token;
    assert!(failover(last) >= 1, "token {last} does not carry the epoch of the failover");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_replica_asked_for_no_lock_is_given_twice() {
    let mut plan = Plan::sentinel(SILENCE);
    plan.replicas = 2;
    let group = group(plan).await;
    is_watched(&group).await;
    let url = format!("{}?replicas=1&replicas_timeout=1s", group.url());
    let report = churned(&url, 2, async || group.servers[0].process.kill().unwrap()).await;
    fenced(&report);
    report.check().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_replaces_a_dead_master_and_clients_go_on() {
    let group = group(Plan::cluster(1, SILENCE)).await;
    let report = churned(&group.url(), 3, async || {
        // Whoever serves the names of the churn is among the three.
        group.servers[owner(&group, "failover-0").await].process.kill().unwrap();
    })
    .await;
    fenced(&report);
}

#[tokio::test]
async fn a_master_that_was_cut_off_gives_smaller_tokens() {
    let group = group(Plan::sentinel(SILENCE)).await;
    is_watched(&group).await;
    let old = backend(&group.url()).await;
    held(old.acquire(&request("a", "x")).await.unwrap());
    group.servers[0].process.pause(true).unwrap();
    // The replica is promoted; nobody has asked over the old connection meanwhile.
    let new = soon_until(async || RedisBackend::connect(config(&group.url())).await.ok()).await;
    let fresh = held(new.acquire(&request("b", "x")).await.unwrap()).token.get();
    group.sentinels.iter().try_for_each(|sentinel| sentinel.process.pause(true)).unwrap();
    group.servers[0].process.pause(false).unwrap();
    let stale = held(old.acquire(&request("b", "x")).await.unwrap()).token.get();
    assert!(stale < fresh, "token {stale} of the old master, {fresh} of the new one");
    assert_eq!((failover(stale), failover(fresh)), (0, 1));
    // Seen by the sentinels again it is a replica, and the client finds the new master.
    group.sentinels.iter().try_for_each(|sentinel| sentinel.process.pause(false)).unwrap();
    let next = soon_until(async || {
        let ask = request("c", "x");
        let token = held(old.acquire(&ask).await.ok()?).token.get();
        old.release(&ask.ticket()).await.ok()?;
        (failover(token) == 1).then_some(token)
    })
    .await;
    assert!(next > stale);
}

#[tokio::test]
async fn an_idle_client_does_not_use_the_epoch_of_an_earlier_promotion() {
    let group = group(Plan::cluster(1, SILENCE)).await;
    let admin = &group.admin;
    let old = owner(&group, "a").await;
    let idle = backend(&group.url()).await;
    let ask = request("a", "x");
    let first = held(idle.acquire(&ask).await.unwrap()).token.get();
    idle.release(&ask.ticket()).await.unwrap();
    // Away from the server and back to it, over the head of the idle connection.
    let masters = group.masters().len();
    for promoted in [old + masters, old] {
        soon_until(async || group.say(admin[promoted], &["CLUSTER", "FAILOVER"]).await.ok()).await;
        soon_until(async || {
            let said = group.say(admin[promoted], &["INFO", "replication"]).await.ok()?.concat();
            said.contains("role:master").then_some(())
        })
        .await;
        group.serves().await.unwrap();
    }
    let epoch = group.say(admin[old], &["CLUSTER", "INFO"]).await.unwrap().concat();
    let epoch: i64 = epoch
        .lines()
        .find_map(|line| line.strip_prefix("cluster_my_epoch:"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let token = held(idle.acquire(&request("a", "x")).await.unwrap()).token.get();
    assert_eq!(failover(token), epoch, "first token {first}, then {token}");
}

#[tokio::test]
async fn what_too_few_replicas_have_is_not_held() {
    let group = group(Plan::sentinel(Duration::from_secs(60))).await;
    let backend = backend(&format!("{}?replicas=1&replicas_timeout=1s", group.url())).await;
    let kept = request("kept", "x");
    soon_until(async || backend.acquire(&kept).await.ok().map(held)).await;
    soon_until(async || renew_one(&*backend, &kept.ticket()).await.ok()).await;
    group.servers[1].process.pause(true).unwrap();
    for mode in ["x", "s", "p3"] {
        let error = backend.acquire(&request("fresh", mode)).await.unwrap_err();
        assert_eq!((error.kind(), error.is_unclear()), (ErrorKind::Unavailable, true));
        assert!(error.to_string().contains("replicas"), "{error}");
    }
    let keys = group.say(group.masters()[0], &["KEYS", "onelock:*:fresh"]).await.unwrap();
    assert_eq!(keys, Vec::<String>::new(), "what was not held is left behind");
    let error = renew_one(&*backend, &kept.ticket()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    group.servers[1].process.pause(false).unwrap();
    soon_until(async || renew_one(&*backend, &kept.ticket()).await.ok()).await;
    soon_until(async || backend.acquire(&request("fresh", "x")).await.ok().map(held)).await;
}

/// A renewal that lengthens nothing, on a connection that has written nothing: the server has nothing to wait for.
#[tokio::test]
async fn a_renewal_that_changes_nothing_counts_only_where_replicas_have_the_lock() {
    let group = group(Plan::sentinel(Duration::from_secs(60))).await;
    let master = group.masters()[0];
    for (layout, waited_for) in [("line", false), ("line", true), ("plain", false)] {
        let options = format!("replicas=1&replicas_timeout=1s&layout={layout}&namespace=n");
        let backend = backend(&format!("{}?{options}", group.url())).await;
        let kept = request(if waited_for { "waited-for" } else { "alone" }, "x");
        let renew = async |lease| {
            let item = Renewal::new(kept.ticket(), lease, lease);
            backend.renew(&[item]).await.swap_remove(0)
        };
        let grant = soon_until(async || backend.acquire(&kept).await.ok().map(held)).await;
        if waited_for {
            soon_until(async || backend.acquire(&request("waited-for", "x")).await.ok().map(waits)).await;
        }
        soon_until(async || renew(HOUR).await.ok()).await;
        group.servers[1].process.pause(true).unwrap();
        renew(HOUR * 2).await.unwrap_err();
        for kind in ["normal", "pubsub"] {
            group.say(master, &["CLIENT", "KILL", "TYPE", kind]).await.unwrap();
        }
        let again = soon_until(async || match renew(HOUR).await {
            Err(error) if !error.to_string().contains("replicas") => None,
            answer => Some(answer),
        })
        .await;
        assert!(again.is_err(), "{layout}, {waited_for}: {again:?}, and no replica has it for as long");
        let evicted = backend.evict(&kept.name, grant.token).await;
        assert!(evicted.is_err(), "{layout}, {waited_for}: {evicted:?}, and the replica has it still");
        group.servers[1].process.pause(false).unwrap();
        soon_until(async || renew(HOUR).await.ok()).await;
    }
}

/// It is used once by evicting its claim, which no failover may bring back. The claim is on another node than the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_brings_no_hand_over_back() {
    let group = group(Plan::cluster(1, SILENCE)).await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut settings = Settings::default();
        settings.ttl = Duration::from_secs(100);
        let store = backend(&format!("{}?replicas=1&replicas_timeout=1s", group.url())).await;
        clients.push(Locks::builder(store).clock(Arc::new(BootClock)).settings(settings).build().unwrap());
    }
    let [first, second] = &clients[..] else { unreachable!() };
    let holds = owner(&group, "a").await;
    let mut guard = soon_until(async || first.mutex("a").unwrap().acquire().await.ok()).await;
    let (hand_over, claims) = loop {
        let hand_over = guard.hand_over().await.unwrap();
        let page = onelock_core::Page::first(9).unwrap();
        let names = first.backend().list("onelock.handover/", &page).await.unwrap().names;
        let claims = owner(&group, &names[0].name.encoded()).await;
        if claims != holds {
            break (hand_over, claims);
        }
        guard = first.resume(hand_over).await.unwrap();
    };
    // Its replica has the claim, and hears of nothing that is done with it.
    let replica = &group.servers[group.masters().len() + claims];
    replica.process.pause(true).unwrap();
    group.say(group.masters()[claims], &["CLIENT", "KILL", "TYPE", "replica"]).await.unwrap();
    let once = first.resume(hand_over.clone()).await;
    group.servers[claims].process.kill().unwrap();
    replica.process.pause(false).unwrap();
    let again = soon_until(async || match second.resume(hand_over.clone()).await {
        Err(error) if error.is_retryable() && !error.to_string().contains("replicas") => None,
        answer => Some(answer),
    })
    .await;
    assert!(!(once.is_ok_and(|guard| guard.is_held()) && again.is_ok()), "two hold by one hand-over");
}

/// While a connection waits for replicas the server serves nothing else on it: what is asked meanwhile waits once, together.
#[tokio::test]
async fn a_crowd_waits_for_its_replicas_together() {
    let group = group(Plan::sentinel(Duration::from_secs(60))).await;
    let store = backend(&format!("{}?replicas=1", group.url())).await;
    let kept = request("kept", "x");
    soon_until(async || store.acquire(&kept).await.ok().map(held)).await;
    soon_until(async || renew_one(&*store, &kept.ticket()).await.ok()).await;
    group.servers[1].process.pause(true).unwrap();
    let asks: Vec<_> = (0..40).map(|i| request(&format!("n{i}"), "x")).collect();
    for answer in join_all(asks.iter().map(|ask| store.acquire(ask))).await {
        let error = answer.unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("replicas"), "{error}");
    }
    let left = group.say(group.masters()[0], &["KEYS", "onelock:*:e:n*"]).await.unwrap();
    assert_eq!(left, Vec::<String>::new(), "what was not held is left behind");
    group.servers[1].process.pause(false).unwrap();
    for answer in join_all(asks.iter().map(|ask| soon_until(async || store.acquire(ask).await.ok()))).await {
        held(answer);
    }
}

/// A failover by hand: the old master stays, as a replica, and refuses to wait for replicas of its own.
#[tokio::test]
async fn a_node_that_has_become_a_replica_sends_its_clients_on() {
    let group = group(Plan::cluster(1, SILENCE)).await;
    let old = owner(&group, "a").await;
    let store = backend(&format!("{}?replicas=1&replicas_timeout=1s", group.url())).await;
    let kept = request("a", "x");
    soon_until(async || store.acquire(&kept).await.ok().map(held)).await;
    let replica = group.admin[old + group.masters().len()];
    soon_until(async || group.say(replica, &["CLUSTER", "FAILOVER"]).await.ok()).await;
    soon_until(async || {
        let said = group.say(replica, &["INFO", "replication"]).await.ok()?.concat();
        said.contains("role:master").then_some(())
    })
    .await;
    group.serves().await.unwrap();
    let last = std::sync::Mutex::new(String::new());
    let renewed = async {
        loop {
            match renew_one(&*store, &kept.ticket()).await {
                Ok(renewed) => return renewed,
                Err(error) => *last.lock().unwrap() = error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let renewed = tokio::time::timeout(PATIENCE, renewed).await;
    assert!(matches!(renewed, Ok(Renewed::Held(_))), "{renewed:?}: {}", last.lock().unwrap());
    soon_until(async || store.acquire(&request("a", "x")).await.ok().map(waits)).await;
}

#[tokio::test]
async fn a_master_without_replicas_is_looked_up_again() {
    let group = group(Plan::sentinel(Duration::from_secs(60))).await;
    let backend = backend(&group.url()).await;
    let ask = request("a", "x");
    held(backend.acquire(&ask).await.unwrap());
    let master = group.masters()[0];
    let connections = async || {
        let stats = group.say(master, &["INFO", "stats"]).await.unwrap().concat();
        let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    group.servers[1].process.kill().unwrap();
    group.say(master, &["CONFIG", "SET", "min-replicas-to-write", "1"]).await.unwrap();
    let fails = async || {
        let error = renew_one(&*backend, &ask.ticket()).await.err()?;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        error.to_string().contains("NOREPLICAS").then_some(())
    };
    soon_until(fails).await;
    // Each look into the server is a connection, too, beside the one that the client makes anew.
    let before = connections().await;
    soon_until(fails).await;
    assert!(connections().await >= before + 2, "the client stays where it cannot write");
    group.say(master, &["CONFIG", "SET", "min-replicas-to-write", "0"]).await.unwrap();
    assert!(matches!(renew_one(&*backend, &ask.ticket()).await, Ok(Renewed::Held(_))));
}

/// The last line of a master that is cut off: nobody renews its holder there, although it may be renewed elsewhere.
#[tokio::test]
async fn a_master_that_is_cut_off_gives_its_waiters_nothing() {
    let group = group(Plan::sentinel(Duration::from_secs(60))).await;
    let url = format!("{}?replicas=1&replicas_timeout=300ms", group.url());
    let (holder, waiter) = (backend(&url).await, backend(&url).await);
    let free = |lock: &str| request(lock, "x").lease(Duration::from_secs(3));
    // By the end of a lease, by an eviction, by a release.
    let locks = ["expires", "evicted", "released"];
    let mut lines = Vec::new();
    for lock in locks {
        let (first, second) = (free(lock), request(lock, "x"));
        let grant = soon_until(async || holder.acquire(&first).await.ok().map(held)).await;
        soon_until(async || waiter.acquire(&second).await.ok().map(waits)).await;
        lines.push((first, grant, second));
    }
    group.servers[1].process.pause(true).unwrap();
    // The eviction says that no replica has it, and a release waits for none.
    holder.evict(&lines[1].0.name, lines[1].1.token).await.unwrap_err();
    holder.release(&lines[2].0.ticket()).await.unwrap();
    // A look is enough to end what has expired.
    soon_until(async || {
        let seen = holder.inspect(&lines[0].0.name).await.ok()?;
        seen.waiters.is_empty().then_some(())
    })
    .await;
    for (_, _, second) in &lines {
        let lock = &second.name;
        assert_eq!(told(&*waiter, &second.ticket()).await, Wake::Ask, "{lock}: a grant");
        let error = renew_one(&*waiter, &second.ticket()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{lock}: {error}");
    }
    group.servers[1].process.pause(false).unwrap();
    for (_, grant, second) in &lines {
        let next = soon_until(async || match renew_one(&*waiter, &second.ticket()).await.ok()? {
            Renewed::Held(grant) => Some(grant),
            other => panic!("{other:?}"),
        })
        .await;
        assert!(next.token > grant.token);
    }
}

#[tokio::test]
async fn a_master_that_steps_down_while_it_waits_is_unavailable() {
    let group = group(Plan::sentinel(Duration::from_secs(60))).await;
    let url = format!("{}?replicas=1&replicas_timeout=20s&request_timeout=25s", group.url());
    let backend = backend(&url).await;
    let (master, replica) = (group.admin[0], group.admin[1]);
    group.servers[1].process.pause(true).unwrap();
    let ask = request("a", "x");
    let asked = tokio::spawn({
        let (backend, ask) = (backend.clone(), ask.clone());
        async move { backend.acquire(&ask).await }
    });
    soon_until(async || {
        let clients = group.say(master, &["CLIENT", "LIST"]).await.ok()?.concat();
        clients.contains(" cmd=wait ").then_some(())
    })
    .await;
    group.say(master, &["REPLICAOF", "127.0.0.1", &replica.port().to_string()]).await.unwrap();
    let error = soon(asked).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.is_unclear()), (ErrorKind::Unavailable, true), "{error}");
    group.servers[1].process.pause(false).unwrap();
}

/// Both are due at the same time, and renewed together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stalls_costs_no_lock_on_another() {
    let group = group(Plan::cluster(0, LIMIT)).await;
    let store = backend(&format!("{}?request_timeout=1m", group.url())).await;
    let mut settings = Settings::default();
    (settings.ttl, settings.waiter_lease) = (Duration::from_secs(6), Duration::from_secs(6));
    let locks = Locks::builder(store).clock(Arc::new(BootClock)).settings(settings).build().unwrap();
    let silent = owner(&group, "a").await;
    let other = {
        let mut others = ["b", "c", "d", "e", "f"].into_iter();
        loop {
            let lock = others.next().unwrap();
            if owner(&group, lock).await != silent {
                break lock;
            }
        }
    };
    let _lost = locks.mutex("a").unwrap().acquire().await.unwrap();
    let kept = locks.mutex(other).unwrap().acquire().await.unwrap();
    group.servers[silent].process.pause(true).unwrap();
    let mut seen = kept.deadline();
    for _ in 0..4 {
        seen = kept.renewed(seen).await.expect("lost with the lock of the node that stalls");
    }
    group.servers[silent].process.pause(false).unwrap();
}
