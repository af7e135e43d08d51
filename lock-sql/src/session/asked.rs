//! A question under way, and how long its answer is waited for.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use onelock_core::Result;
use tokio::runtime::{self, Handle};
use tokio::time::{Instant, Sleep};

use super::dialect::{Answer, Ask, Dialect, Session};

/// A session that has answered, and what.
pub(super) type Reply<C> = (Session<C>, Result<Answer>);

/// A question under way, with the session it is asked of: dropped, the session's connection is closed with it.
pub(super) struct Asked<C> {
    reply: BoxFuture<'static, Reply<C>>,
    timer: Timer,
}

/// Asks `session`.
pub(super) fn ask<D: Dialect>(dialect: &Arc<D>, mut session: Session<D::Conn>, ask: Ask) -> Asked<D::Conn> {
    let dialect = Arc::clone(dialect);
    let timer = std::mem::take(&mut session.timer);
    let reply = Box::pin(async move {
        let answer = dialect.ask(&mut session.conn, &ask).await;
        if answer.is_ok()
            && let Some(idle) = ask.idle()
        {
            session.idle = idle;
        }
        (session, answer)
    });
    Asked { reply, timer }
}

impl<C> Asked<C> {
    /// The answer, if it comes in this time; the question goes on afterwards.
    pub(super) async fn within(&mut self, limit: Duration) -> Option<Reply<C>> {
        let until = self.until(limit);
        std::future::poll_fn(|cx| match self.poll(cx) {
            Poll::Ready(reply) => Poll::Ready(Some(reply)),
            Poll::Pending => self.poll_late(until, cx).map(|()| None),
        })
        .await
    }

    /// When a wait of this length that begins here and now is over; for [`poll_late`](Self::poll_late).
    pub(super) fn until(&mut self, limit: Duration) -> Instant {
        self.timer.come_here();
        Instant::now() + limit
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Reply<C>> {
        self.reply.poll_unpin(cx).map(|(mut session, answer)| {
            session.timer = std::mem::take(&mut self.timer);
            (session, answer)
        })
    }

    /// Ready when it is later than `until`.
    pub(super) fn poll_late(&mut self, until: Instant, cx: &mut Context<'_>) -> Poll<()> {
        self.timer.poll(until, cx)
    }
}

/// What tells that time is up, for one question of a session after the other. It stays set for an earlier moment, and is set
/// anew when that comes, so that most questions neither set nor clear one.
#[derive(Debug, Default)]
pub(super) struct Timer(Option<(runtime::Id, Pin<Box<Sleep>>)>);

impl Timer {
    /// Before a wait: a timer of another runtime may end with that one, and to ask it then is a panic.
    fn come_here(&mut self) {
        let here = Handle::current().id();
        self.0.take_if(|(runtime, _)| *runtime != here);
    }

    fn poll(&mut self, until: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let (_, sleep) =
            self.0.get_or_insert_with(|| (Handle::current().id(), Box::pin(tokio::time::sleep_until(until))));
        if sleep.deadline() > until {
            sleep.as_mut().reset(until);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if Instant::now() >= until {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(until);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_timer_tells_of_every_moment_when_it_comes() {
        let (mut timer, begin) = (Timer::default(), Instant::now());
        // Later, sooner than it is set for, after it has gone off unheard, and at once.
        for (pause, limit) in [(0, 5_000), (0, 9_000), (10, 20), (60_000, 300), (0, 0), (0, 7)] {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let from = Instant::now();
            let until = from + Duration::from_millis(limit);
            std::future::poll_fn(|cx| timer.poll(until, cx)).await;
            assert_eq!(from.elapsed(), Duration::from_millis(limit), "begun {:?}", from - begin);
        }
        // Set for a moment that nobody waits for in the end.
        let soon = Instant::now() + Duration::from_millis(50);
        let set = std::future::poll_fn(|cx| Poll::Ready(timer.poll(soon, cx))).await;
        assert!(set.is_pending());
        let until = soon + Duration::from_secs(1);
        std::future::poll_fn(|cx| timer.poll(until, cx)).await;
        assert_eq!(Instant::now(), until);
    }
}
