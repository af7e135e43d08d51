//! Nodes that no entry has, in a session that lives on: nobody renews or releases them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::poll;
use onelock_conformance::ctx::{exclusive, held, leased, name, renewal, ticket, trying, waiting};
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};
use onelock_conformance::verdict::{Context as _, Verdict};
use onelock_conformance::{ensure, ensure_eq, expect};
use onelock_core::{Backend, BootClock, Clock as _, LockName, Locks, Release, Renewed, Settings};

use crate::support::harness::open;
use crate::{backed_up, eventually, raw, restored, url};

/// Sessions are tidied every two minutes.
const TIDIED: Duration = Duration::from_secs(240);

/// Polls until nobody holds it.
async fn comes_free(client: &Arc<dyn Backend>, name: &LockName) -> Verdict {
    let free = async {
        while !client.inspect(name).await?.holders.is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    };
    tokio::time::timeout(TIDIED, free).await.context("the lock that nobody holds is free")?
}

/// A server that was restored from a backup shows what was released since, in the session that held it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_restored_server_shows_again_goes() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let client = open(&url(&server)).await?;
    let long = Duration::from_secs(600);
    let kept = leased(exclusive(&name("kept")?)?, long);
    let released = leased(exclusive(&name("released")?)?, long);
    let (kept_token, token) = (held(&client, &kept).await?.token, held(&client, &released).await?.token);
    let backup = backed_up(&server).await?;
    let releases = async || Ok(client.release(&ticket(&released, token)).await.ok());
    ensure_eq!(eventually("a release", releases).await?, Release::Released, "the release");
    restored(&server, &backup).await?;
    let (admin, other) = (raw(&server).await?, open(&url(&server)).await?);
    let renewed = eventually("the session goes on", async || {
        // The server lets in who has seen no more than it has.
        for _ in 0..100 {
            admin.set_data("/own", b"", None).await?;
        }
        Ok(client.renew(&[renewal(&kept, kept_token)]).await.pop().and_then(Result::ok))
    });
    expect!(renewed.await?, Renewed::Held(_) => (), "what is held");
    ensure_eq!(other.inspect(&released.name).await?.holders.len(), 1, "what is shown again");
    comes_free(&other, &released.name).await?;
    ensure_eq!(other.inspect(&kept.name).await?.holders.len(), 1, "what is held");
    Ok(())
}

/// A join that stalled until its entry was over makes its node then.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_late_join_makes_goes() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let (client, other) = (open(&url(&server)).await?, open(&url(&server)).await?);
    let (name, clock) = (name("late")?, BootClock);
    // Behind another: its next try looks at the line before it joins.
    let first = exclusive(&name)?;
    let token = held(&other, &first).await?.token;
    let second = leased(exclusive(&name)?, Duration::from_secs(20));
    let place = waiting(&client, &second).await?;
    client.release(&ticket(&second, place.token)).await?;
    other.release(&ticket(&first, token)).await?;
    // The session has something else to keep.
    let mut settings = Settings::default();
    (settings.ttl, settings.waiter_lease) = (second.lease, second.lease);
    let locks = Locks::builder(Arc::clone(&client)).settings(settings).build()?;
    let guard = locks.mutex("kept")?.acquire().await?;
    let late = leased(trying(exclusive(&name)?), second.lease);
    let mut join = client.acquire(&late);
    ensure!(poll!(&mut join).is_pending(), "it looks at the line");
    // The lease, and as long as a request may take.
    let over = clock.now() + late.lease + Duration::from_secs(6);
    eventually("its entry is over", async || Ok((clock.now() > over).then_some(()))).await?;
    let error = expect!(join.await, Err(error) => error, "a join whose entry is over");
    ensure!(error.is_unclear(), "{error}");
    ensure_eq!(other.inspect(&name).await?.holders.len(), 1, "what it has made");
    comes_free(&other, &name).await?;
    ensure!(guard.is_held(), "what is kept");
    Ok(())
}
