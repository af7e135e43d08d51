//! What is this store's own, on real servers. One program, so that its tests wait side by side.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod batch;
mod curator;
mod ensemble;
mod epochs;
mod fence;
mod idle;
mod kazoo;
mod limits;
mod line;
mod orphans;
mod partition;
mod power;
mod requests;
mod rights;
mod sessions;
mod stalled_leader;
mod support;
mod tls;
mod ttl;
mod users;
mod worn;

use std::path::{Path, PathBuf};
use std::time::Duration;

use onelock_conformance::servers::zookeeper::{Setup, ZkServer};
use onelock_conformance::verdict::{Context as _, Verdict};
use support::counter::Counter;
use zookeeper_client as zk;

/// A server, and a counter before it.
pub(crate) async fn counted() -> Verdict<(ZkServer, Counter, String)> {
    let server = ZkServer::start(Setup::default()).await?;
    let counter = Counter::start(server.address(), "/own")?;
    let url = format!("zk://{}/own?tick=200ms", counter.address());
    Ok((server, counter, url))
}

pub(crate) fn url(server: &ZkServer) -> String {
    format!("zk://{}/own?tick=200ms", server.address())
}

pub(crate) async fn raw(server: &ZkServer) -> Verdict<zk::Client> {
    let connector = zk::Client::connector().with_session_timeout(Duration::from_secs(20));
    Ok(connector.connect(&server.address().to_string()).await?)
}

/// A copy of what the server has written. It is started again.
pub(crate) async fn backed_up(server: &ZkServer) -> Verdict<PathBuf> {
    server.process.kill()?;
    let backup = server.process.folder().join("backup");
    std::fs::create_dir(&backup)?;
    for file in std::fs::read_dir(server.data())? {
        let file = file?;
        std::fs::copy(file.path(), backup.join(file.file_name()))?;
    }
    server.launch()?;
    server.ready().await?;
    Ok(backup)
}

/// Starts the server with what it had then.
pub(crate) async fn restored(server: &ZkServer, backup: &Path) -> Verdict {
    server.process.kill()?;
    std::fs::remove_dir_all(server.data())?;
    std::fs::rename(backup, server.data())?;
    server.launch()?;
    server.ready().await
}

/// Polls until `probe` gives something.
pub(crate) async fn eventually<T>(
    what: &str,
    mut probe: impl AsyncFnMut() -> Verdict<Option<T>>,
) -> Verdict<T> {
    let polling = async {
        loop {
            if let Some(found) = probe().await? {
                return Ok(found);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), polling).await.context(what)?
}

/// Nothing has been asked for a while.
pub(crate) async fn quiet(counter: &Counter) -> Verdict<u64> {
    let settled = async || {
        let before = counter.counts().requests();
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok((counter.counts().requests() == before).then_some(before))
    };
    eventually("quiet", settled).await
}
