//! Curator's mutex beside ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use onelock_conformance::ctx::{name, number, request, ticket, waiting};
use onelock_conformance::ensure_eq;
use onelock_conformance::servers::zookeeper::{Setup, ZkServer};
use onelock_conformance::verdict::{Context as _, Verdict};
use onelock_core::{Mode, Wake};
use zookeeper_client as zk;

use crate::support::harness::open;
use crate::{raw, url};

/// Curator's `InterProcessMutex`, as its sources do it: who is the first by what follows the last `lock-` holds.
struct Curator {
    client: zk::Client,
    parent: String,
}

impl Curator {
    async fn acquire(&self, id: u32) -> Verdict<String> {
        let prefix = format!("{}/_c_{id:08x}-1111-2222-3333-444444444444-lock-", self.parent);
        let node = loop {
            let sequential = zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());
            match self.client.create(&prefix, b"10.0.0.1", &sequential).await {
                Ok((_, sequence)) => break format!("{prefix}{sequence}"),
                Err(zk::Error::NoNode) => {
                    let container = zk::CreateMode::Container.with_acls(zk::Acls::anyone_all());
                    self.client.mkdir(&self.parent, &container).await?;
                }
                Err(error) => return Err(error.into()),
            }
        };
        loop {
            let mut children = self.client.list_children(&self.parent).await?;
            let key =
                |child: &str| child.rfind("lock-").map_or(child.to_owned(), |at| child[at + 5..].to_owned());
            children.sort_by_key(|child| key(child));
            let own = node.rsplit('/').next().context("a name")?;
            let at = children.iter().position(|child| child == own).context("the own node")?;
            if at == 0 {
                return Ok(node);
            }
            let before = format!("{}/{}", self.parent, children[at - 1]);
            match self.client.get_and_watch_data(&before).await {
                Ok((.., watcher)) => drop(watcher.changed().await),
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Nobody else is inside.
async fn work(inside: &AtomicU32) -> Verdict {
    ensure_eq!(inside.fetch_add(1, SeqCst), 0, "others inside");
    tokio::task::yield_now().await;
    inside.fetch_sub(1, SeqCst);
    Ok(())
}

/// A Java service with Curator's mutex and this store exclude each other on a plain name, and both get their turns.
#[tokio::test(flavor = "multi_thread")]
async fn curator_and_we_exclude_each_other() -> Verdict {
    let server = ZkServer::start(Setup::default()).await?;
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = tokio::task::JoinSet::<Verdict<u32>>::new();
    for task in 0..3_u32 {
        let (client, shared) = (raw(&server).await?, Arc::clone(&inside));
        let curator = Curator { client, parent: "/own/both".into() };
        tasks.spawn(async move {
            for round in 0..40 {
                let node = curator.acquire(task * 1000 + round).await?;
                work(&shared).await?;
                curator.client.delete(&node, None).await?;
            }
            Ok(40)
        });
        let (locks, inside) =
            (onelock_core::Locks::builder(open(&url(&server)).await?).build()?, Arc::clone(&inside));
        tasks.spawn(async move {
            for round in 0..40 {
                let lock = locks.mutex("both")?;
                let guard = if round % 4 == 3 {
                    let Some(guard) = lock.try_acquire().await? else { continue };
                    guard
                } else {
                    lock.acquire().await?
                };
                work(&inside).await?;
                guard.release().await?;
            }
            Ok(0)
        });
    }
    let mut served = 0;
    while let Some(done) = tasks.join_next().await {
        served += done??;
    }
    ensure_eq!(served, 120, "turns of the others");
    // A reader of ours waits for theirs as well.
    let curator = Curator { client: raw(&server).await?, parent: "/own/both".into() };
    let theirs = curator.acquire(9_999).await?;
    let client = open(&url(&server)).await?;
    let reader = request(&name("both")?, Mode::Shared)?;
    let place = waiting(&client, &reader).await?;
    let line = client.inspect(&name("both")?).await?;
    ensure_eq!(line.holders[0].note.as_str(), "10.0.0.1", "their note");
    curator.client.delete(&theirs, None).await?;
    let wake = client.wait(&ticket(&reader, place.token)).await?;
    ensure_eq!(wake, Wake::Held(number(place)?), "the reader's turn");
    Ok(())
}
