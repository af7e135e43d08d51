//! A store whose requests are observed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;

use super::{Event, Observers};
use crate::backend::{Backend, Release, Renewal, Renewed};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::token::FencingToken;
use crate::toolkit::{Layer, Layered};

#[derive(Debug)]
pub(crate) struct Observed {
    store: Arc<dyn Backend>,
    observers: Arc<Observers>,
    /// The last call has failed in a way that a retry may help.
    down: AtomicBool,
}

impl Observed {
    pub(crate) fn over(store: Arc<dyn Backend>, observers: &Arc<Observers>) -> Arc<dyn Backend> {
        let observers = Arc::clone(observers);
        Arc::new(Layered(Self { store, observers, down: AtomicBool::new(false) }))
    }

    fn tell(&self, verb: &'static str, sent: Timestamp, failure: Option<&Error>) {
        let (store, took) = (&*self.observers.store, self.observers.clock.now().saturating_since(sent));
        self.observers.tell(None, &Event::Request { store, verb, failure, took });
        let down = failure.is_some_and(Error::is_retryable);
        if down != self.down.load(Ordering::Relaxed) && self.down.swap(down, Ordering::Relaxed) && !down {
            self.observers.tell(None, &Event::Reconnected { store });
        }
    }
}

#[async_trait]
impl Layer for Observed {
    fn inner(&self) -> &dyn Backend {
        &*self.store
    }

    fn pass<T: Send>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T>> + Send,
    ) -> impl Future<Output = Result<T>> + Send {
        let sent = self.observers.clock.now();
        async move {
            let answer = call.await;
            self.tell(verb, sent, answer.as_ref().err());
            answer
        }
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let sent = self.observers.clock.now();
        let answers = self.store.renew(due).await;
        self.tell("renew", sent, answers.iter().find_map(|answer| answer.as_ref().err()));
        answers
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let answer = self.pass("evict", self.store.evict(name, token)).await;
        if let Ok(Release::Released) = answer {
            self.observers.tell(None, &Event::Evicted { name, token });
        }
        answer
    }
}
