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
use crate::clock::{Clock, Timestamp};
use crate::error::{ErrorKind, Result};

/// How long an observed acquisition waits before it asks once for its place in the line.
const PLACE_AFTER: Duration = Duration::from_millis(100);

/// An acquisition under way; its drop tells that it was cancelled.
struct Acquiring<'a> {
    observers: &'a Observers,
    clock: &'a dyn Clock,
    of: Subject,
    began: Timestamp,
    span: Span,
    waits: AtomicBool,
    progress: &'a Progress,
    outcome: Outcome,
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        let waited = self.waits.load(Ordering::Relaxed);
        let position = self.progress.position().or((!waited).then_some(0));
        let wait = self.clock.now().saturating_since(self.began);
        let event = Event::Acquired { of: &self.of, outcome: self.outcome, wait, position, waited };
        self.observers.tell(Some(&self.span), &event);
    }
}

impl Lock {
    /// Acquires within `limit`, if there is one, and tells observers how that ends: `over`, when without a guard. `tell` learns of its
    /// place in the line meanwhile.
    pub(crate) async fn watched(
        &self,
        limit: Option<Duration>,
        over: Outcome,
        tell: Option<Tell<'_>>,
    ) -> Result<Option<Guard>> {
        let (client, progress) = (&*self.client, &Progress::default());
        let mut call = pin!(self.acquire_with(progress.clone(), limit));
        let telling = async {
            match tell {
                // In a place of its own: most acquisitions tell nothing.
                Some(tell) => Box::pin(telling(self, progress, tell)).await,
                None => pending().await,
            }
        };
        let mut call = pin!(async {
            tokio::select! {
                biased;
                guard = &mut call => guard,
                never = telling => never,
            }
        });
        let Some(observers) = &client.observers else { return call.await };
        // In a place of its own: without observers it costs nothing.
        Box::pin(async move {
            let of = observers.subject(&self.terms.name, self.terms.mode);
            let mut acquiring = Acquiring {
                observers,
                clock: &*client.clock,
                began: client.clock.now(),
                span: spans::acquire(&of),
                of,
                waits: AtomicBool::new(false),
                progress,
                outcome: Outcome::Cancelled,
            };
            let waiting = async {
                progress.is_behind().await;
                acquiring.waits.store(true, Ordering::Relaxed);
                observers.tell(Some(&acquiring.span), &Event::Waiting(&acquiring.of));
                if client.sleep_until(client.clock.now() + PLACE_AFTER).await {
                    // Nobody need know it: it is not asked for again.
                    let _ = progress.look(client, self.name()).await;
                }
                pending().await
            };
            let answer = spans::around(&acquiring.span, async {
                tokio::select! {
                    biased;
                    answer = &mut call => answer,
                    never = waiting => never,
                }
            });
            let answer = answer.await;
            acquiring.outcome = match &answer {
                Ok(Some(_)) => Outcome::Acquired,
                Ok(None) => over,
                Err(error) if error.kind() == ErrorKind::Evicted => Outcome::Evicted,
                Err(error) if error.kind() == ErrorKind::Busy => Outcome::Busy,
                Err(_) => Outcome::Failed,
            };
            let of = acquiring.of.clone();
            drop(acquiring);
            if let Ok(Some(guard)) = &answer {
                observers.begun(guard.entry(), of, client.clock.now());
            }
            answer
        })
        .await
    }
}
