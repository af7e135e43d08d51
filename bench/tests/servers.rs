//! Every server that this build has a store for starts, counts, and is locked on by the store and by its driver alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use lock_bench::data::Kind;
use lock_bench::servers;
use lock_bench::subject::{Ask, Client, Failure, LEASE, Lock, Need, Subject};

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
    let (lock, other) = (one.prepare(&Ask::exclusive("a"))?, two.prepare(&Ask::exclusive("a"))?);
    let held = lock.take().await?;
    assert!(other.try_take().await?.is_none(), "{}: two hold", info.id);
    held.release().await?;
    other.try_take().await?.expect("it is free").release().await?;
    assert_eq!(one.ping().await?, info.kind == Kind::Floor && info.server.is_some(), "{}", info.id);

    if subject.lacks(Need::Wait).is_none() {
        in_turns(subject, &[&*one, &*two]).await?;
    }

    let before = subject.served().await?;
    cycles(&*lock).await?;
    if let (Some(before), Some(after)) = (before, subject.served().await?) {
        let each = (after - before) as f64 / CYCLES as f64;
        println!("{:20} {:24} {each:.2} requests a cycle", info.id, info.server.as_deref().unwrap_or("-"));
        // A keep-alive more or two, on a machine that is busy.
        assert!((2.0..4.5).contains(&each), "{}: {each} requests a cycle", info.id);
    } else {
        assert_eq!(info.server, None, "{} does not count", info.id);
    }
    if let Some((client, tap)) = subject.connect_tapped(LEASE).await? {
        let lock = client.prepare(&Ask::exclusive("b"))?;
        cycles(&*lock).await?;
        let before = tap.trips();
        cycles(&*lock).await?;
        let each = (tap.trips() - before) as f64 / CYCLES as f64;
        println!("{:20} {each:.2} round trips a cycle", info.id);
        // More where the protocol has turns of its own, as HTTP/2 does.
        assert!(each >= 2.0, "{}: {each} round trips a cycle", info.id);
        client.close().await?;
    }
    one.close().await?;
    two.close().await
}

/// Clients that wait for each other: each gets it, and no two at once.
async fn in_turns(subject: &Arc<dyn Subject>, clients: &[&dyn Client]) -> Result<(), Failure> {
    let inside = AtomicBool::new(false);
    let turns = clients.iter().map(|client| async {
        let lock = client.prepare(&Ask::exclusive("turns"))?;
        for _ in 0..CYCLES {
            let held = tokio::time::timeout(Duration::from_secs(60), lock.take()).await??;
            assert!(!inside.swap(true, Ordering::SeqCst), "{}: two hold", subject.info().id);
            // Long enough for the other to ask, and to think that it holds if it did.
            tokio::time::sleep(Duration::from_millis(2)).await;
            inside.store(false, Ordering::SeqCst);
            held.release().await?;
        }
        Ok::<_, Failure>(())
    });
    try_join_all(turns).await.map(|_| ())
}

async fn cycles(lock: &dyn Lock) -> Result<(), Failure> {
    for _ in 0..CYCLES {
        tokio::time::timeout(Duration::from_secs(60), lock.take()).await??.release().await?;
    }
    Ok(())
}
