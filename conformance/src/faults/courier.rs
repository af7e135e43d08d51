//! A store that keeps its pushes ready, however long its client stalls.

use std::sync::Arc;

use async_trait::async_trait;
use onelock_core::toolkit::{Layer, Layered};
use onelock_core::{Backend, Error, ErrorKind, Result, Ticket, Wake};
use tokio::runtime::Handle;

/// A backend whose waiting goes on elsewhere: what was pushed while the client stalled is there when it goes on, as
/// it would be in the buffer of a socket.
#[derive(Debug)]
pub struct Courier {
    inner: Arc<dyn Backend>,
    elsewhere: Handle,
}

impl Courier {
    /// Lets `inner` wait on the runtime `elsewhere`.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, elsewhere: &Handle) -> Layered<Self> {
        Layered(Self { inner, elsewhere: elsewhere.clone() })
    }
}

/// Ends what waits elsewhere when nobody waits here.
struct Errand(tokio::task::JoinHandle<Result<Wake>>);

impl Drop for Errand {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[async_trait]
impl Layer for Courier {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        let (inner, ticket) = (Arc::clone(&self.inner), ticket.clone());
        let mut errand = Errand(self.elsewhere.spawn(async move { inner.wait(&ticket).await }));
        let ended = (&mut errand.0).await;
        ended.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "nobody waits there any more")))
    }
}
