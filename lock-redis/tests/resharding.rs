//! Slots of a cluster that are on their way to another node, under clients at work.

use crate::common::group::{SILENCE, backend, bucket, group, owner, soon_until};
use crate::common::{HOUR, held, renew_one, request, soon, told, waits};
use crate::harness::servers::{Group, Plan};
use onelock_core::{Backend, ErrorKind, Page, Renewal, Renewed, Wake};

/// The keys of a slot, by the node that has it, to another.
async fn moved(group: &Group, slot: &str, from: usize, to: usize) {
    let (source, target) = (group.masters()[from], group.masters()[to]);
    loop {
        let keys = group.say(source, &["CLUSTER", "GETKEYSINSLOT", slot, "100"]).await.unwrap();
        if keys.is_empty() {
            break;
        }
        let port = target.port().to_string();
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        command.extend(keys.iter().map(String::as_str));
        group.say(source, &command).await.unwrap();
    }
}

#[tokio::test]
async fn locks_move_with_their_slot() {
    let group = group(Plan::cluster(0, SILENCE * 4)).await;
    let holder = backend(&group.url()).await;
    let waiter = backend(&format!("{}?request_timeout=400ms", group.url())).await;
    let from = owner(&group, "a").await;
    let to = (from + 1) % 3;
    let (source, target) = (group.masters()[from], group.masters()[to]);
    let tag = bucket("a").to_string();
    let slot = group.say(source, &["CLUSTER", "KEYSLOT", &tag]).await.unwrap().concat();
    let mut ids = Vec::new();
    for address in group.masters() {
        ids.push(group.say(*address, &["CLUSTER", "MYID"]).await.unwrap().concat());
    }
    let (first, second) = (request("a", "x"), request("a", "x"));
    let old = held(holder.acquire(&first).await.unwrap()).token;
    waits(waiter.acquire(&second).await.unwrap());
    // Another line of the same bucket, of fewer keys.
    let other = (0..).map(|i| format!("b{i}")).find(|other| bucket(other) == bucket("a")).unwrap();
    let alone = request(&other, "x");
    let alone_token = held(holder.acquire(&alone).await.unwrap()).token;
    group.say(target, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[from]]).await.unwrap();
    group.say(source, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[to]]).await.unwrap();
    for step in ["on its way", "there"] {
        if step == "there" {
            moved(&group, &slot, from, to).await;
        }
        // A line all of whose keys are there is served where they are; of others the cluster cannot tell.
        let (third, fourth) = (request("a", "x"), request(&other, "x"));
        waits(waiter.acquire(&third).await.unwrap());
        waiter.release(&third.ticket()).await.unwrap();
        let error = waiter.acquire(&fourth).await.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{step}: {error}");
    }
    for address in [target, source].iter().chain(group.masters()) {
        group.say(*address, &["CLUSTER", "SETSLOT", &slot, "NODE", &ids[to]]).await.unwrap();
    }
    for (ask, token) in [(&first, old), (&alone, alone_token)] {
        let answer = renew_one(&*holder, &ask.ticket()).await;
        assert!(matches!(answer, Ok(Renewed::Held(grant)) if grant.token == token), "{answer:?}");
    }
    holder.release(&first.ticket()).await.unwrap();
    // Pushed by another node than the one it waited at; or it has looked at the cluster meanwhile, and asks.
    let token = loop {
        match told(&*waiter, &second.ticket()).await {
            Wake::Held(token) => break token,
            Wake::Ask => match renew_one(&*waiter, &second.ticket()).await {
                Ok(Renewed::Held(grant)) => break grant.token,
                other => assert!(matches!(other, Ok(Renewed::Waiting(_)) | Err(_)), "{other:?}"),
            },
        }
    };
    assert!(token > old);
}

/// A reshard that is interrupted leaves its slots as they are on their way, for minutes or for ever.
#[tokio::test]
async fn what_is_held_is_kept_while_its_slot_is_on_its_way() {
    let group = group(Plan::cluster(0, SILENCE * 4)).await;
    let backend = backend(&format!("{}?request_timeout=1s", group.url())).await;
    let (from, key) = (owner(&group, "b0").await, bucket("b0"));
    let to = (from + 1) % 3;
    let (source, target) = (group.masters()[from], group.masters()[to]);
    let slot = group.say(source, &["CLUSTER", "KEYSLOT", &key.to_string()]).await.unwrap().concat();
    // Alone, shared, with somebody who waits; one whose keys move as a whole, and one that is torn in two.
    let mut names = (0..).map(|i| format!("b{i}")).filter(|lock| bucket(lock) == key);
    let [alone, shared, queued, moves, torn] = std::array::from_fn(|_| names.next().unwrap());
    let mut held_ones = Vec::new();
    for (lock, mode) in [
        (&alone, "x"),
        (&shared, "s"),
        (&shared, "s"),
        (&queued, "x"),
        (&moves, "x"),
        (&torn, "s"),
        (&torn, "s"),
    ] {
        let ask = request(lock, mode);
        held_ones.push((held(backend.acquire(&ask).await.unwrap()).token, ask));
    }
    let waiter = request(&queued, "x");
    waits(backend.acquire(&waiter).await.unwrap());
    let ids = [source, target]
        .map(async |address| group.say(address, &["CLUSTER", "MYID"]).await.unwrap().concat());
    let [source_id, target_id] = ids;
    let (source_id, target_id) = (source_id.await, target_id.await);
    group.say(target, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]).await.unwrap();
    group.say(source, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]).await.unwrap();
    let migrate = async |keys: &[String]| {
        let port = target.port().to_string();
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        command.extend(keys.iter().map(String::as_str));
        group.say(source, &command).await.unwrap();
    };
    let keys = |lock: &str, kinds: &[&str]| -> Vec<_> {
        kinds.iter().map(|kind| format!("onelock:{{{key}}}:{kind}:{lock}")).collect()
    };
    for step in ["none has moved", "some have moved"] {
        let moved = step == "some have moved";
        if moved {
            migrate(&keys(&moves, &["e", "o"])).await;
            migrate(&keys(&torn, &["e"])).await;
        }
        // All of one bucket: one script, of which the cluster cannot serve all.
        let due: Vec<_> = held_ones.iter().map(|(_, ask)| ask).chain([&waiter]).collect();
        let due: Vec<_> = due.iter().map(|ask| Renewal::new(ask.ticket(), HOUR * 2, HOUR)).collect();
        let answers = backend.renew(&due).await;
        for ((token, ask), answer) in held_ones.iter().zip(&answers) {
            let lock = ask.name.as_str();
            match answer {
                Err(error) if moved && lock == torn => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}")
                }
                Ok(Renewed::Held(grant)) => assert_eq!(grant.token, *token, "{step}: {lock}"),
                other => panic!("{step}: {lock}: {other:?}"),
            }
        }
        assert!(matches!(answers.last().unwrap(), Ok(Renewed::Waiting(_))), "{step}: {answers:?}");
    }
    // The page says so: of keys that are not all there the cluster serves no look at them.
    let looks = [
        backend.inspect(&held_ones[0].1.name).await.map(drop),
        backend.evict(&held_ones[0].1.name, held_ones[0].0).await.map(drop),
        backend.list("", &Page::first(100).unwrap()).await.map(drop),
    ];
    for look in looks {
        assert_eq!(look.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    // One entry of two, a whole line here, a whole line there.
    for (lock, left) in [(&shared, 1), (&shared, 0), (&alone, 0), (&moves, 0)] {
        let at = held_ones.iter().position(|(_, ask)| ask.name.as_str() == lock).unwrap();
        let (_, ask) = held_ones.remove(at);
        assert_eq!(backend.release(&ask.ticket()).await.unwrap(), onelock_core::Release::Released, "{lock}");
        let holds = held_ones.iter().filter(|(_, ask)| ask.name.as_str() == lock).count();
        assert_eq!(holds, left);
        for address in [source, target] {
            let there = group.say(address, &["KEYS", &format!("onelock:*:{lock}")]).await.unwrap();
            assert!(left > 0 || there.is_empty(), "{lock}: {there:?}");
        }
    }
}

/// One whose key moved ahead of its slot, and one beside a line that is torn in two, whatever time a request has.
#[tokio::test]
async fn locks_of_a_slot_on_its_way_are_renewed_without_delay() {
    let group = group(Plan::cluster(0, SILENCE * 4)).await;
    let backend = backend(&format!("{}?request_timeout=10m", group.url())).await;
    let (from, key) = (owner(&group, "b0").await, bucket("b0"));
    let to = (from + 1) % 3;
    let (source, target) = (group.masters()[from], group.masters()[to]);
    let torn = (1..).map(|i| format!("b{i}")).find(|lock| bucket(lock) == key).unwrap();
    let asks = [request("b0", "x"), request(&torn, "s"), request(&torn, "s")];
    for ask in &asks {
        held(backend.acquire(ask).await.unwrap());
    }
    let slot = group.say(source, &["CLUSTER", "KEYSLOT", &key.to_string()]).await.unwrap().concat();
    let id = async |address| group.say(address, &["CLUSTER", "MYID"]).await.unwrap().concat();
    let (source_id, target_id) = (id(source).await, id(target).await);
    group.say(target, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]).await.unwrap();
    group.say(source, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]).await.unwrap();
    let port = target.port().to_string();
    let due = asks.each_ref().map(|ask| Renewal::new(ask.ticket(), HOUR, HOUR));
    for (moves, renewed) in [("b0", &due[..1]), (&torn, &due)] {
        let entries = format!("onelock:{{{key}}}:e:{moves}");
        group.say(source, &["MIGRATE", "127.0.0.1", &port, &entries, "0", "5000"]).await.unwrap();
        let answers = soon(backend.renew(renewed)).await;
        assert!(matches!(answers[0], Ok(Renewed::Held(_))), "{answers:?}");
    }
}

/// Who ends a reshard tells both nodes, one after the other. In between each sends the clients to the other one.
#[tokio::test]
async fn nodes_that_send_a_client_to_each_other_are_not_asked_in_a_loop() {
    let group = group(Plan::cluster(0, SILENCE * 4)).await;
    let backend = backend(&format!("{}?request_timeout=1s", group.url())).await;
    let from = owner(&group, "a").await;
    let (source, target) = (group.masters()[from], group.masters()[(from + 1) % 3]);
    let slot = group.say(source, &["CLUSTER", "KEYSLOT", &bucket("a").to_string()]).await.unwrap().concat();
    let id = async |address| group.say(address, &["CLUSTER", "MYID"]).await.unwrap().concat();
    let (source_id, target_id) = (id(source).await, id(target).await);
    group.say(target, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]).await.unwrap();
    group.say(source, &["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).await.unwrap();
    // Those of Valkey come to agree by themselves.
    if let Err(error) = backend.acquire(&request("a", "x")).await {
        assert!(error.to_string().contains("MOVED"), "{error}");
    }
    let stats = group.say(source, &["INFO", "commandstats"]).await.unwrap().concat();
    let calls = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
    let refused = calls.split(',').find_map(|part| part.strip_prefix("rejected_calls=")).unwrap();
    assert!(refused.parse::<u32>().unwrap() < 40, "asked {refused} times within a second");
}

/// Nobody serves a slot, a client reads the map because of another one, and then the slot is served again.
#[tokio::test]
async fn a_slot_that_nobody_served_is_looked_for_again() {
    let group = group(Plan::cluster(0, SILENCE * 4)).await;
    for address in group.masters() {
        group.say(*address, &["CONFIG", "SET", "cluster-require-full-coverage", "no"]).await.unwrap();
    }
    let backend = backend(&group.url()).await;
    let other = (0..).map(|i| format!("b{i}")).find(|other| bucket(other) != bucket("a")).unwrap();
    let slot = bucket("a").to_string();
    let slot = group.say(group.masters()[0], &["CLUSTER", "KEYSLOT", &slot]).await.unwrap().concat();
    let from = group.masters()[owner(&group, "a").await];
    // What one has dropped another may tell it of until that one has dropped it, too.
    assigned(&group, 16_383, async || {
        for address in group.masters() {
            let _ = group.say(*address, &["CLUSTER", "DELSLOTS", &slot]).await;
        }
    })
    .await;
    let error = backend.acquire(&request("a", "x")).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("serves slot"), "{error}");
    held(backend.acquire(&request(&other, "x")).await.unwrap());
    group.say(from, &["CLUSTER", "ADDSLOTS", &slot]).await.unwrap();
    assigned(&group, 16_384, async || {}).await;
    held(backend.acquire(&request("a", "x")).await.unwrap());
}

/// Does something until all nodes agree on how many slots are served.
async fn assigned(group: &Group, slots: usize, again: impl AsyncFn()) {
    soon_until(async || {
        again().await;
        for address in group.masters() {
            let info = group.say(*address, &["CLUSTER", "INFO"]).await.unwrap().concat();
            if !info.contains(&format!("cluster_slots_assigned:{slots}\r")) {
                return None;
            }
        }
        Some(())
    })
    .await;
}
