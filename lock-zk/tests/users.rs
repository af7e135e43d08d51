//! Whose the nodes are.

use onelock_conformance::ctx::{exclusive, held, name, ticket, trying};
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};
use onelock_conformance::verdict::Verdict;
use onelock_conformance::{ensure, ensure_eq, expect};
use onelock_core::{ErrorKind, Release};
use zookeeper_client as zk;

use crate::raw;
use crate::support::harness::open;

/// With a password everything is made for one user, and another is told which path it may not touch.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_belong_to_their_user() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let at = |user: &str, path: &str| format!("zk://{user}@{}/{path}?tick=200ms", server.address());
    let owner = open(&at("me:secret-of-mine", "vault")).await?;
    let lock = name("gold")?;
    let request = exclusive(&lock)?;
    let grant = held(&owner, &request).await?;
    let stranger = raw(&server).await?;
    for path in ["/vault", "/vault/gold"] {
        let error = expect!(stranger.list_children(path).await, Err(error) => error, "a stranger");
        ensure_eq!(error, zk::Error::NoAuth, "a stranger at {path}");
    }
    let error = expect!(open(&at("me:other-secret", "vault")).await, Err(error) => error, "a wrong password");
    ensure_eq!(error.kind(), ErrorKind::Denied, "a wrong password");
    ensure!(error.to_string().contains("/vault"), "which path: {error}");
    // Below a node that others may read but not write.
    let read_only = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_read());
    stranger.create("/shown", b"", &read_only).await?;
    let guest = open(&at("me:secret-of-mine", "shown")).await?;
    let error = expect!(guest.acquire(&exclusive(&lock)?).await, Err(error) => error, "no right to create");
    ensure_eq!(error.kind(), ErrorKind::Denied, "no right to create");
    ensure!(error.to_string().contains("/shown/gold"), "which path: {error}");
    let error =
        expect!(guest.acquire(&trying(exclusive(&lock)?)).await, Err(error) => error, "no right to create");
    ensure_eq!(error.kind(), ErrorKind::Denied, "a try without the right");
    ensure_eq!(owner.release(&ticket(&request, grant.token)).await?, Release::Released, "the owner");
    Ok(())
}
