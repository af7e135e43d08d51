//! A subject behind one server: what all baselines and peers have in common.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::data::{Kind, SubjectInfo};
use crate::servers::Running;
use crate::subject::{Client, Counter, Failure, Need, Subject};
use crate::tap::Tap;

/// How clients of a server are made that do not come from this library.
#[async_trait]
pub trait Connector: Send + Sync {
    /// A client of the server at this address, as [`Subject::connect`] says.
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<Arc<dyn Client>, Failure>;

    /// As [`Subject::lacks`]. Unless a way says otherwise, two bare requests take a free lock and give it back.
    fn lacks(&self, need: Need) -> Option<String> {
        let can = matches!(need, Need::Try | Need::Ping);
        (!can).then(|| "the two bare requests take a lock and give it back".to_owned())
    }
}

/// A way, and the server it leads to.
pub struct Networked<W> {
    info: SubjectInfo,
    server: SocketAddr,
    counter: Counter,
    way: W,
}

impl<W: Connector> Networked<W> {
    /// The way to lock on `server` that is called `id` in a run, and `library` in a report on `store`.
    pub fn new(kind: Kind, id: &str, store: &str, library: &str, server: &Running, way: W) -> Self {
        let info = SubjectInfo {
            id: id.to_owned(),
            store: store.to_owned(),
            kind,
            library: library.to_owned(),
            server: Some(server.version.clone()),
        };
        Self { info, server: server.address, counter: Arc::clone(&server.counter), way }
    }
}

#[async_trait]
impl<W: Connector> Subject for Networked<W> {
    fn info(&self) -> &SubjectInfo {
        &self.info
    }

    async fn connect(&self, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        self.way.open(self.server, lease).await
    }

    async fn connect_tapped(&self, lease: Duration) -> Result<Option<(Arc<dyn Client>, Tap)>, Failure> {
        let tap = Tap::start(self.server).await?;
        Ok(Some((self.way.open(tap.address(), lease).await?, tap)))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        self.way.lacks(need)
    }

    fn counter(&self) -> Option<&Counter> {
        Some(&self.counter)
    }
}
