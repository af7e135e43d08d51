//! Spans and events of the feature `tracing`; without it this is nothing.

#[cfg(feature = "tracing")]
pub(super) use on::*;

#[cfg(not(feature = "tracing"))]
pub(super) use off::*;

#[cfg(feature = "tracing")]
mod on {
    use std::future::Future;
    use std::time::Duration;

    use tracing::field::Empty;
    use tracing::{Instrument, info, info_span, record_all, warn};

    use super::super::{Event, Subject};
    use crate::token::FencingToken;

    pub(crate) use tracing::Span;

    pub(crate) fn acquire(of: &Subject) -> Span {
        info_span!(
            target: "onelock",
            "onelock.acquire",
            lock.name = %of.name,
            lock.mode = of.mode_label(),
            lock.store = &*of.store,
            outcome = Empty,
            wait_ms = Empty,
            position = Empty,
        )
    }

    pub(crate) fn hold(of: &Subject, token: FencingToken) -> Span {
        info_span!(
            target: "onelock",
            "onelock.hold",
            lock.name = %of.name,
            lock.mode = of.mode_label(),
            lock.store = &*of.store,
            token = token.get(),
            held_ms = Empty,
            reason = Empty,
        )
    }

    pub(crate) fn around<F: Future>(span: Option<&Span>, call: F) -> impl Future<Output = F::Output> {
        call.instrument(span.cloned().unwrap_or_else(Span::none))
    }

    pub(crate) fn tell(span: Option<&Span>, event: &Event<'_>) {
        let none = Span::none();
        let span = span.unwrap_or(&none);
        match event {
            Event::Acquired { outcome, wait, position, .. } => {
                record_all!(span, outcome = outcome.as_str(), wait_ms = millis(*wait), position = *position);
            }
            Event::Ended { of, token, held, reason } => {
                record_all!(span, held_ms = millis(*held), reason = %reason);
                if reason.is_loss() {
                    warn!(target: "onelock", parent: span, { lock.name = %of.name, token = token.get(), %reason }, "lock lost");
                }
            }
            Event::Renewed { of, token, slack, failure: Some(error), .. } => {
                warn!(target: "onelock", { lock.name = %of.name, token = token.map(FencingToken::get), slack, %error }, "renewal failed");
            }
            Event::LeaseLow { of, token, left } => {
                let left_ms = millis(*left);
                warn!(target: "onelock", { lock.name = %of.name, token = token.get(), left_ms }, "less than a third of the lease is left");
            }
            Event::Unused(of) => {
                info!(target: "onelock", { lock.name = %of.name }, "a grant was given back unused");
            }
            Event::Evicted { name, token } => {
                warn!(target: "onelock", { lock.name = %name, token = token.get() }, "entry evicted");
            }
            Event::Reconnected { store } => {
                info!(target: "onelock", { lock.store = store }, "the store answers again");
            }
            _ => {}
        }
    }

    fn millis(time: Duration) -> u64 {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(not(feature = "tracing"))]
mod off {
    use super::super::{Event, Subject};
    use crate::token::FencingToken;

    pub(crate) type Span = ();

    pub(crate) fn acquire(_: &Subject) -> Span {}

    pub(crate) fn hold(_: &Subject, _: FencingToken) -> Span {}

    pub(crate) fn around<F>(_: Option<&Span>, call: F) -> F {
        call
    }

    pub(crate) fn tell(_: Option<&Span>, _: &Event<'_>) {}
}
