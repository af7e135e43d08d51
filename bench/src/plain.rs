//! Locks of drivers and of other libraries, with the little that they can do.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;

use crate::subject::{Failure, Held, Lock};

/// A lock that is taken and given back, and nothing else.
pub trait Plain: Send + Sync + 'static {
    /// What has to be kept while it is held.
    type Kept: Send + Sync + 'static;

    /// Takes it. When it is not free this waits, or says so with `None` if it must not `wait`.
    fn take(&self, wait: bool) -> impl Future<Output = Result<Option<Self::Kept>, Failure>> + Send;

    /// Gives it back and waits for the answer.
    fn give_back(&self, kept: Self::Kept) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// A plain lock as workloads see it.
pub fn lock<P: Plain>(plain: P) -> Arc<dyn Lock> {
    Arc::new(Prepared(Arc::new(plain)))
}

struct Prepared<P>(Arc<P>);

struct HeldPlain<P: Plain> {
    plain: Arc<P>,
    kept: P::Kept,
}

impl<P: Plain> Prepared<P> {
    async fn ask(&self, wait: bool) -> Result<Option<Box<dyn Held>>, Failure> {
        let kept = self.0.take(wait).await?;
        Ok(kept.map(|kept| Box::new(HeldPlain { plain: Arc::clone(&self.0), kept }) as Box<dyn Held>))
    }
}

#[async_trait]
impl<P: Plain> Lock for Prepared<P> {
    async fn take(&self) -> Result<Box<dyn Held>, Failure> {
        Ok(self.ask(true).await?.ok_or("the lock is not free, and this cannot wait for it")?)
    }

    async fn try_take(&self) -> Result<Option<Box<dyn Held>>, Failure> {
        self.ask(false).await
    }
}

#[async_trait]
impl<P: Plain> Held for HeldPlain<P> {
    fn again(&self) -> Result<Box<dyn Held>, Failure> {
        Err("it cannot be taken again".into())
    }

    async fn release(self: Box<Self>) -> Result<(), Failure> {
        let Self { plain, kept } = *self;
        plain.give_back(kept).await
    }

    fn abandon(self: Box<Self>) {
        // Some give back what they hold when they are dropped.
        std::mem::forget(self);
    }
}
