//! Every server that this build has a store for starts, counts, and is locked on by the store and by its driver alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use onelock_bench::data::Kind;
use onelock_bench::servers;
use onelock_bench::subject::{Client, Failure, LEASE, Lock, LockSpec, Need, Subject};

/// How many cycles are counted: so many that a keep-alive or two between them do not matter.
const CYCLES: u64 = 20;

#[tokio::test]
async fn stores_and_drivers_lock_and_are_counted() {
    let fleet = servers::all().await.unwrap();
    assert!(fleet.left_out.is_empty(), "{:?}", fleet.left_out);
    for subject in &fleet.subjects {
        let id = &subject.info().id;
        try_one(subject).await.unwrap_or_else(|error| panic!("{id}: {error}"));
    }
}

async fn try_one(subject: &Arc<dyn Subject>) -> Result<(), Failure> {
    let info = subject.info();
    let (one, two) = (subject.connect(LEASE).await?, subject.connect(LEASE).await?);
    let (lock, other) = (one.prepare(&LockSpec::exclusive("a"))?, two.prepare(&LockSpec::exclusive("a"))?);
    let held = lock.take().await?;
    assert!(other.try_take().await?.is_none(), "{}: two hold", info.id);
    held.release().await?;
    other.try_take().await?.expect("it is free").release().await?;
    assert_eq!(one.ping().await?, info.kind == Kind::Baseline && info.server.is_some(), "{}", info.id);

    if subject.lacks(Need::Wait).is_none() {
        in_turns(subject, [&*one, &*two]).await?;
    }

    let before = subject.served().await?;
    cycles(&*lock).await?;
    if let (Some(before), Some(after)) = (before, subject.served().await?) {
        let each = (after - before) as f64 / CYCLES as f64;
        println!("{:20} {:24} {each:.2} requests a cycle", info.id, info.server.as_deref().unwrap_or("-"));
        // A keep-alive more or two, on a machine that is busy. MySQL counts each statement of a request.
        let most =
            if info.server.as_deref().is_some_and(|name| name.starts_with("MySQL")) { 8.5 } else { 4.5 };
        assert!((2.0..most).contains(&each), "{}: {each} requests a cycle", info.id);
    } else {
        assert_eq!(info.server, None, "{} does not count", info.id);
    }
    if let Some((client, tap)) = subject.connect_tapped(LEASE).await? {
        let lock = client.prepare(&LockSpec::exclusive("b"))?;
        cycles(&*lock).await?;
        let before = tap.trips();
        cycles(&*lock).await?;
        let each = (tap.trips() - before) as f64 / CYCLES as f64;
        println!("{:20} {each:.2} round trips a cycle", info.id);
        // More where the protocol has turns of its own, as HTTP/2 does.
        assert!(each >= 2.0, "{}: {each} round trips a cycle", info.id);
        // The two bare requests, and none that a pool adds.
        assert!(info.kind != Kind::Baseline || each < 2.5, "{}: {each} round trips a cycle", info.id);
        client.close().await?;
    }
    one.close().await?;
    two.close().await
}

/// Two clients that wait for each other: each gets it in turn, and not before the other has given it back.
async fn in_turns(subject: &Arc<dyn Subject>, clients: [&dyn Client; 2]) -> Result<(), Failure> {
    let id = &subject.info().id;
    let [one, two] = clients.map(|client| client.prepare(&LockSpec::exclusive("turns")));
    let locks = [one?, two?];
    let mut held = soon(locks[0].take()).await?;
    for turn in 1..=usize::try_from(CYCLES)? {
        let (holder, next) = (&locks[(turn + 1) % 2], &locks[turn % 2]);
        let mut waits = std::pin::pin!(next.take());
        // While the holder asks thrice more the other has had its answer.
        for _ in 0..3 {
            tokio::select! {
                _ = &mut waits => panic!("{id}: two hold"),
                busy = soon(holder.try_take()) => assert!(busy?.is_none(), "{id}: two hold"),
            }
        }
        // Side by side: what still asks, in the middle of a transaction, would stand in the way of the release else.
        let (released, next) = tokio::join!(soon(held.release()), soon(waits));
        released?;
        held = next?;
    }
    held.release().await
}

async fn soon<T>(answer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::time::timeout(Duration::from_secs(60), answer).await?
}

async fn cycles(lock: &dyn Lock) -> Result<(), Failure> {
    for _ in 0..CYCLES {
        soon(lock.take()).await?.release().await?;
    }
    Ok(())
}
