//! A store whose answers take long to arrive.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::toolkit::{Layer, Layered};
use onelock_core::{Backend, Result};

/// A backend whose answers arrive `late` after the store gave them.
#[derive(Debug)]
pub struct Slow {
    inner: Arc<dyn Backend>,
    late: Duration,
}

impl Slow {
    /// Delays the answers of `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, late: Duration) -> Layered<Self> {
        Layered(Self { inner, late })
    }
}

impl Layer for Slow {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn pass<T: Send>(&self, _verb: &str, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let answer = call.await;
        tokio::time::sleep(self.late).await;
        answer
    }
}
