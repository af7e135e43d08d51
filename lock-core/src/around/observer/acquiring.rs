//! An acquisition that is observed.

use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::spans::{self, Span};
use super::{Event, Observers, Outcome, Subject};
use crate::around::progress::{Tell, telling};
use crate::client::guard::Guard;
use crate::client::lock::Lock;
use crate::client::progress::Progress;
use crate::clock::Timestamp;
use crate::error::{ErrorKind, Result};

/// How long an observed acquisition waits before it asks once for its place in the line.
const PLACE_AFTER: Duration = Duration::from_millis(100);

/// An acquisition under way; its drop tells that it was cancelled.
struct Acquiring<'a> {
    observers: &'a Observers,
    of: Subject,
    began: Timestamp,
    span: Span,
    waits: AtomicBool,
    progress: &'a Progress,
    outcome: Outcome,
}

impl<'a> Acquiring<'a> {
    fn of(observers: &'a Observers, lock: &'a Lock, progress: &'a Progress, began: Timestamp) -> Self {
        let of = observers.subject(&lock.terms.name, lock.terms.mode);
        let (span, waits) = (spans::acquire(&of), AtomicBool::new(false));
        Self { observers, of, began, span, waits, progress, outcome: Outcome::Cancelled }
    }

    fn waits(&self) {
        self.waits.store(true, Ordering::Relaxed);
        self.observers.tell(Some(&self.span), &Event::Waiting(&self.of));
    }

    fn ended(mut self, answer: &Result<Option<Guard>>, limit: Option<Duration>) {
        self.outcome = match answer {
            Ok(Some(_)) => Outcome::Acquired,
            Ok(None) if limit == Some(Duration::ZERO) => Outcome::Busy,
            Ok(None) => Outcome::Timeout,
            Err(error) if error.kind() == ErrorKind::Evicted => Outcome::Evicted,
            Err(error) if error.kind() == ErrorKind::Busy => Outcome::Busy,
            Err(_) => Outcome::Failed,
        };
        let observers = self.observers;
        drop(self);
        if let Ok(Some(guard)) = answer {
            observers.begun(guard.entry());
        }
    }
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        let waited = self.waits.load(Ordering::Relaxed);
        let position = self.progress.position().or((!waited).then_some(0));
        let wait = self.observers.clock.now().saturating_since(self.began);
        let event = Event::Acquired { of: &self.of, outcome: self.outcome, wait, position, waited };
        self.observers.tell(Some(&self.span), &event);
    }
}

impl Lock {
    /// Acquires within `limit`, if there is one, and tells observers how that ends. `tell` learns of its place in the line meanwhile.
    pub(crate) async fn watched(
        &self,
        limit: Option<Duration>,
        tell: Option<Tell<'_>>,
    ) -> Result<Option<Guard>> {
        let (client, progress) = (&*self.client, &Progress::default());
        let mut call = pin!(self.acquire_with(progress.clone(), limit));
        if client.observers.is_none() && tell.is_none() {
            return call.await;
        }
        // In a place of its own: where nobody watches it costs nothing.
        Box::pin(async move {
            let began = client.clock.now();
            let observers = client.observers.as_ref();
            let acquiring = observers.map(|observers| Acquiring::of(observers, self, progress, began));
            let meanwhile = async {
                progress.is_behind().await;
                if let Some(acquiring) = &acquiring {
                    acquiring.waits();
                }
                match tell {
                    Some(tell) => Box::pin(telling(self, progress, began, tell)).await,
                    // For observers. Nobody need know it: it is not asked for again.
                    None if client.sleep(PLACE_AFTER).await => drop(progress.look(client, self.name()).await),
                    None => {}
                }
                pending().await
            };
            let answer = spans::around(acquiring.as_ref().map(|acquiring| &acquiring.span), async {
                tokio::select! {
                    biased;
                    answer = &mut call => answer,
                    never = meanwhile => never,
                }
            });
            let answer = answer.await;
            if let Some(acquiring) = acquiring {
                acquiring.ended(&answer, limit);
            }
            answer
        })
        .await
    }
}
