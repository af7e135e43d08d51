//! A cluster that is restored from a snapshot which is older than what its clients know.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::leases::client;
use crate::support::server::Member;
use onelock_conformance::ctx::{PATIENCE, exclusive, held, leased, name, renewal, ticket};
use onelock_conformance::{Stop, Verdict};
use onelock_core::{Locks, Renewed, Settings};
use tokio::process::Command;
use tokio::time::timeout;

async fn etcdctl(words: &[&str]) -> Verdict {
    let done = Command::new("etcdctl").args(words).env("ETCDCTL_API", "3").output().await?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    if done.status.success() { Ok(()) } else { Err(Stop::failed(format!("{words:?}: {said}"))) }
}

/// A lock that was released after the snapshot is back, on a lease that its client keeps alive for another lock: it ends all the
/// same, and the other one is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_restore_brings_back_ends() -> Verdict {
    let server = Member::single(None).await?;
    let backend = client(&server.url()).await?;
    let lease = Duration::from_secs(5);
    let (kept, back) = (leased(exclusive(&name("kept")?)?, lease), leased(exclusive(&name("back")?)?, lease));
    let (token, gone) = (held(&backend, &kept).await?.token, held(&backend, &back).await?.token);
    let (data, saved) = (server.process.folder().join("data"), server.process.folder().join("saved"));
    let (data, saved) = (data.display().to_string(), saved.display().to_string());
    let at = format!("--endpoints={}", server.address());
    etcdctl(&[&at, "snapshot", "save", &saved]).await?;
    backend.release(&ticket(&back, gone)).await?;
    server.process.kill()?;
    std::fs::remove_dir_all(&data)?;
    etcdctl(&["snapshot", "restore", &saved, "--data-dir", &data]).await?;
    server.restart().await?;

    assert_eq!(backend.inspect(&back.name).await?.holders.len(), 1, "it is not back");
    let end = Instant::now() + 3 * PATIENCE;
    while !backend.inspect(&back.name).await?.holders.is_empty() {
        assert!(Instant::now() < end, "it stays for ever");
        let answer = backend.renew(&[renewal(&kept, token)]).await.remove(0)?;
        assert!(matches!(answer, Renewed::Held(_)), "{answer:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// A server that was away for longer than a lease gives every lease its whole time again: what lapsed meanwhile is taken out as soon as
/// it answers, long before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lapsed_in_an_outage_is_taken_out_after_it() -> Verdict {
    let server = Member::single(None).await?;
    let backend = client(&server.url()).await?;
    let lease = Duration::from_secs(12);
    let lapsing = leased(exclusive(&name("lapsing")?)?, lease);
    held(&backend, &lapsing).await?;
    server.process.kill()?;
    // Longer than the client keeps it, by any of its clocks.
    tokio::time::sleep(lease * 2).await;
    server.restart().await?;
    let other = client(&server.url()).await?;
    let began = Instant::now();
    while !other.inspect(&lapsing.name).await?.holders.is_empty() {
        assert!(began.elapsed() < lease * 2 / 3, "it has its whole lease again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Who holds or waits since before the snapshot goes on, in a store whose revisions have gone back; who came after it is told, joins
/// again, and has its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_keeps_nobody_waiting() -> Verdict {
    let server = Member::single(None).await?;
    let locks = async || -> Verdict<Locks> {
        let mut settings = Settings::default();
        (settings.ttl, settings.waiter_lease) = (Duration::from_secs(6), Duration::from_secs(6));
        Ok(Locks::builder(client(&server.url()).await?).settings(settings).build()?)
    };
    let (first, second, third) = (locks().await?, locks().await?, locks().await?);
    let guard = first.mutex("a")?.acquire().await?;
    let working = Arc::new(AtomicUsize::new(0));
    let turn = |locks: &Locks| {
        let (lock, working) = (locks.mutex("a"), Arc::clone(&working));
        tokio::spawn(async move {
            let guard = lock?.acquire().await?;
            let alone = working.fetch_add(1, Ordering::SeqCst) == 0;
            tokio::time::sleep(Duration::from_millis(50)).await;
            working.fetch_sub(1, Ordering::SeqCst);
            guard.release().await?;
            Ok::<_, onelock_core::Error>(alone)
        })
    };
    let waiting = async |count: usize| -> Verdict {
        let end = Instant::now() + PATIENCE;
        while first.inspect("a").await?.waiters.len() != count {
            assert!(Instant::now() < end, "{count} do not wait");
        }
        Ok(())
    };
    let early = turn(&second);
    waiting(1).await?;
    let (data, saved) = (server.process.folder().join("data"), server.process.folder().join("saved"));
    let (data, saved) = (data.display().to_string(), saved.display().to_string());
    let at = format!("--endpoints={}", server.address());
    etcdctl(&[&at, "snapshot", "save", &saved]).await?;
    // Revisions that are not in it.
    for _ in 0..50 {
        first.mutex("b")?.acquire().await?.release().await?;
    }
    let (late, after) = (turn(&third), third.mutex("c")?.acquire().await?);
    waiting(2).await?;
    server.process.kill()?;
    std::fs::remove_dir_all(&data)?;
    etcdctl(&["snapshot", "restore", &saved, "--data-dir", &data]).await?;
    server.restart().await?;
    assert!(timeout(PATIENCE, after.lost()).await.is_ok(), "a lock that is not there is believed in");
    assert!(guard.is_held(), "{:?}", guard.token());
    guard.release().await?;
    assert!(timeout(PATIENCE, early).await??? && timeout(PATIENCE, late).await???, "two hold");
    Ok(())
}
