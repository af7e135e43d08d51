//! Fenced commands on a real server.

use std::time::Duration;

use crate::common::{Server, name, token};
use onelock_core::{ErrorKind, Locks};
use onelock_redis::fence::{run, run_as};
use redis::{Cmd, cmd};

fn set(value: &str) -> Cmd {
    cmd("SET").arg("{n}:data").arg(value).to_owned()
}

const KEYS: [&str; 2] = ["{n}:fence", "{n}:data"];

#[tokio::test]
async fn a_late_writer_is_stopped_and_its_unfenced_twin_does_harm() {
    let server = Server::start(&[]).await;
    let mut raw = server.raw().await;
    let mut data = raw.0.clone();
    let locks = Locks::builder(server.backend().await).build().unwrap();
    let lock = locks.mutex("n").unwrap().ttl(Duration::from_millis(500)).unwrap();
    let late = lock.clone().auto_renew(false).acquire().await.unwrap();
    let (of, number) = (late.name().clone(), late.token().unwrap());
    // Until the lease of the first has ended.
    let next = lock.acquire().await.unwrap();
    let calls = raw.calls("eval").await;
    run(&mut data, &next, &KEYS, &set("later")).await.unwrap();
    let error = run_as(&mut data, (&of, number, true), &KEYS, &set("late")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
    let stale = error.stale().unwrap();
    assert_eq!((stale.token, stale.newest), (number, next.token().unwrap()));
    assert_eq!(raw.calls("eval").await - calls, 2, "one request each");
    assert_eq!(raw.text("GET {n}:data").await, "later");
    set("late").exec_async(&mut data).await.unwrap();
    assert_eq!(raw.text("GET {n}:data").await, "late");
    // The holder that knows of it is told by its guard.
    assert_eq!(run(&mut data, &late, &KEYS, &set("late")).await.unwrap_err().kind(), ErrorKind::Lost);
    run(&mut data, &next, &KEYS, &set("later")).await.unwrap();
}

#[tokio::test]
async fn those_that_share_are_compared_and_permits_are_refused() {
    let server = Server::start(&[]).await;
    let mut data = server.raw().await.0;
    let locks = Locks::builder(server.backend().await).build().unwrap();
    let both = locks.rwlock("n").unwrap();
    let (first, second) = (both.read().acquire().await.unwrap(), both.read().acquire().await.unwrap());
    run(&mut data, &second, &KEYS, &set("second")).await.unwrap();
    run(&mut data, &first, &KEYS, &set("first")).await.unwrap();
    let (of, number) = (first.name().clone(), first.token().unwrap());
    first.release().await.unwrap();
    second.release().await.unwrap();
    let writer = both.write().acquire().await.unwrap();
    run(&mut data, &writer, &KEYS, &set("writer")).await.unwrap();
    let error = run_as(&mut data, (&of, number, false), &KEYS, &set("late")).await.unwrap_err();
    assert_eq!(error.stale().map(|stale| stale.newest), Some(writer.token().unwrap()), "{error}");
    let permit = locks.semaphore("p", 2).unwrap().acquire().await.unwrap();
    assert_eq!(run(&mut data, &permit, &KEYS, &set("p")).await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(run(&mut data, &writer, &[], &set("w")).await.unwrap_err().kind(), ErrorKind::Misuse);
}

/// Numbers above 2^53 and of different lengths.
#[tokio::test]
async fn large_numbers_are_told_apart() {
    let server = Server::start(&[]).await;
    let mut data = server.raw().await.0;
    let (name, ping) = (name("n"), cmd("PING"));
    let numbers = [9, 10, 9_007_199_254_740_992, 9_007_199_254_740_993, i64::MAX];
    for (i, number) in numbers.iter().enumerate() {
        run_as(&mut data, (&name, token(*number), true), &KEYS, &ping).await.unwrap();
        for before in &numbers[..i] {
            let error = run_as(&mut data, (&name, token(*before), true), &KEYS, &ping).await.unwrap_err();
            assert_eq!(error.stale().map(|stale| stale.newest.get()), Some(*number), "{before}: {error}");
        }
    }
}

/// What is no token is somebody else's: as where the keys are given in another order.
#[tokio::test]
async fn what_is_no_watermark_is_left_alone() {
    let server = Server::start(&[]).await;
    let mut raw = server.raw().await;
    let mut data = raw.0.clone();
    for foreign in ["paid", "-5", "7.5", "99999999999999999999", "a longer text than any token is"] {
        raw.run_args(&["SET", "{n}:fence", foreign]).await;
        let ran = run_as(&mut data, (&name("n"), token(1 << 40), true), &KEYS, &set("written")).await;
        let error = ran.expect_err(foreign);
        assert!(error.to_string().contains("no fencing token"), "{foreign}: {error}");
        assert_eq!(raw.text("GET {n}:fence").await, foreign);
        assert_eq!(raw.int("EXISTS {n}:data").await, 0, "{foreign}");
    }
}

/// A cluster of one node that has every slot: what is in one works, what is not is refused before anything is written.
#[tokio::test]
async fn in_a_cluster_all_keys_have_one_hash_tag() {
    // Its own choice, its port and 10 000, may be another server's.
    let bus = onelock_conformance::servers::free_port().unwrap().to_string();
    let server = Server::start(&["--cluster-enabled", "yes", "--cluster-port", &bus]).await;
    let mut raw = server.raw().await;
    raw.run("CLUSTER ADDSLOTSRANGE 0 16383").await;
    crate::common::soon(async {
        while !format!("{:?}", raw.run("CLUSTER INFO").await).contains("cluster_state:ok") {}
    })
    .await;
    let mut data = raw.0.clone();
    let name = name("n");
    run_as(&mut data, (&name, token(7), true), &KEYS, &set("later")).await.unwrap();
    let keys = ["n:fence", "{n}:data"];
    let error = run_as(&mut data, (&name, token(8), true), &keys, &set("late")).await.unwrap_err();
    assert!(error.to_string().contains("CROSSSLOT"), "{error}");
    assert_eq!(raw.text("GET {n}:data").await, "later");
    assert_eq!(raw.int("EXISTS n:fence").await, 0);
}
