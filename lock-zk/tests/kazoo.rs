//! Kazoo's locks beside ours.

use std::time::Duration;

use onelock_conformance::ctx::{held, name, number, request, ticket, trying, waiting};
use onelock_conformance::ensure_eq;
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};
use onelock_conformance::verdict::Verdict;
use onelock_core::{Mode, Standing, Wake};
use zookeeper_client as zk;

use crate::support::harness::open;
use crate::{raw, url};

/// A node of kazoo's `Lock`, `WriteLock` (`__lock__`) or `ReadLock` (`__rlock__`) holds and is waited for: it is an
/// entry of the line to us.
#[tokio::test(flavor = "multi_thread")]
async fn we_wait_for_kazoo() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let (client, kazoo) = (open(&url(&server)).await?, raw(&server).await?);
    let persistent = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    let sequential = zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());
    for kind in ["__lock__", "__rlock__"] {
        let text = format!("kazoo{kind}");
        let name = name(&text)?;
        let parent = format!("/own/{}", name.encoded());
        kazoo.mkdir(&parent, &persistent).await?;
        let prefix = format!("{parent}/0123456789abcdef0123456789abcdef{kind}");
        let (stat, sequence) = kazoo.create(&prefix, b"10.0.0.1", &sequential).await?;
        let line = client.inspect(&name).await?;
        ensure_eq!(line.holders.len(), 1, "{kind}: holders");
        ensure_eq!(line.holders[0].note.as_str(), "10.0.0.1", "{kind}: its note");
        ensure_eq!(line.holders[0].token.get(), stat.czxid, "{kind}: its number");
        let busy = client.acquire(&trying(request(&name, Mode::Shared)?)).await?;
        ensure_eq!(busy, Standing::Busy(onelock_core::Busy::default()), "{kind}: a try");
        for mode in [Mode::Shared, Mode::Exclusive] {
            let request = request(&name, mode)?;
            let place = waiting(&client, &request).await?;
            client.release(&ticket(&request, place.token)).await?;
        }
        let own = request(&name, Mode::Exclusive)?;
        let place = waiting(&client, &own).await?;
        let wait = tokio::spawn({
            let (client, ticket) = (std::sync::Arc::clone(&client), ticket(&own, place.token));
            async move { client.wait(&ticket).await }
        });
        kazoo.delete(&format!("{prefix}{sequence}"), None).await?;
        let wake = tokio::time::timeout(Duration::from_secs(30), wait).await???;
        ensure_eq!(wake, Wake::Held(number(place)?), "{kind}: our turn");
        client.release(&ticket(&own, place.token)).await?;
        // The next one of theirs is behind ours in the line.
        let own = request(&name, Mode::Exclusive)?;
        let token = held(&client, &own).await?.token;
        kazoo.create(&prefix, b"10.0.0.2", &sequential).await?;
        let line = client.inspect(&name).await?;
        ensure_eq!((line.holders.len(), line.waiters.len()), (1, 1), "{kind}: the line");
        ensure_eq!(line.holders[0].token, token, "{kind}: who holds");
        client.release(&ticket(&own, token)).await?;
    }
    Ok(())
}
