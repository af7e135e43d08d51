//! An acquisition that is observed.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::spans::{self, Span};
use super::{Event, Observers, Outcome, Subject};
use crate::client::Client;
use crate::client::acquire::Terms;
use crate::client::guard::Guard;
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

/// Goes on with `call`, an acquisition by these terms, and tells how it ends; `over` is what it is when it ends without a guard.
pub(crate) async fn watched(
    client: &Client,
    terms: &Terms,
    progress: &Progress,
    over: Outcome,
    mut call: impl Future<Output = Result<Option<Guard>>> + Unpin,
) -> Result<Option<Guard>> {
    let Some(observers) = &client.observers else { return call.await };
    // In a place of its own: without observers it costs nothing.
    Box::pin(async move {
        let of = observers.subject(&terms.name, terms.mode);
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
                let _ = progress.look(client, &terms.name).await;
            }
            std::future::pending().await
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
