//! Tasks that send through one connection do so in batches, so that the server works while the rest of them get ready.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

/// How many may send before the connection's task must have run, where many requests are under way.
const MANY: u32 = 32;
/// The same where fewer than [`MANY`] are: of eight, some are at the server then, some on their way back, and some get ready. Three or
/// fewer never step back.
const FEW: u32 = 3;

/// One for each connection.
///
/// The task of a connection reads many answers at once and wakes everybody whom they are for. On a runtime of one thread
/// all of them get ready and send before that task runs again and writes: the server has nothing to do while the client
/// works, and the client nothing while the server does. So after some have sent the others step behind the task of the
/// connection in the runtime's queue: it writes what there is, and the two sides overlap.
#[derive(Debug, Default)]
pub(crate) struct Stagger {
    batch: Mutex<Batch>,
    /// How many send or wait for their answer.
    under_way: AtomicU32,
}

#[derive(Debug, Default)]
struct Batch {
    number: u64,
    left: u32,
    stepped_back: u32,
}

/// A request under way, until this is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay<'a>(&'a AtomicU32);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Stagger {
    /// Returns when it is time to send: at once, or after the tasks that are ready now have run. What it returns is kept until the
    /// answer is there. Nothing is kept for who does not come back.
    pub(crate) async fn turn(&self) -> UnderWay<'_> {
        let others = self.under_way.fetch_add(1, Ordering::Relaxed);
        let under_way = UnderWay(&self.under_way);
        if others < FEW {
            return under_way;
        }
        let mut stepped_back = None;
        poll_fn(|context| {
            let mut batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
            if stepped_back == Some(batch.number) {
                // The first that comes back. Half of those who wait, so that a crowd is through in few steps.
                batch.number += 1;
                let few = self.under_way.load(Ordering::Relaxed) < MANY;
                batch.left = if few { FEW } else { MANY }.max(batch.stepped_back / 2);
                batch.stepped_back = 0;
            }
            if batch.left > 0 {
                batch.left -= 1;
                return Poll::Ready(());
            }
            batch.stepped_back += 1;
            stepped_back = Some(batch.number);
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        under_way
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
    use tokio::task::JoinSet;

    use super::*;

    /// What a connection's task writes at once, when so many tasks send at once and no answer comes.
    async fn writes(tasks: usize) -> Vec<Vec<usize>> {
        let (stagger, (requests, mut sent)) = (Arc::new(Stagger::default()), unbounded_channel());
        let mut senders = JoinSet::new();
        let written = tokio::spawn(async move {
            let mut writes = Vec::new();
            while writes.iter().map(Vec::len).sum::<usize>() < tasks {
                let first = sent.recv().await.unwrap();
                writes.push(rest(first, &mut sent));
            }
            writes
        });
        for task in 0..tasks {
            let (stagger, requests) = (Arc::clone(&stagger), requests.clone());
            senders.spawn(async move {
                let _under_way = stagger.turn().await;
                requests.send(task).unwrap();
                std::future::pending::<()>().await;
            });
        }
        let writes = written.await.unwrap();
        senders.shutdown().await;
        assert_eq!(stagger.under_way.load(Ordering::Relaxed), 0);
        writes
    }

    fn rest(first: usize, sent: &mut UnboundedReceiver<usize>) -> Vec<usize> {
        std::iter::once(first).chain(std::iter::from_fn(|| sent.try_recv().ok())).collect()
    }

    async fn sizes(tasks: usize) -> Vec<usize> {
        let writes = writes(tasks).await;
        assert!(writes.concat().is_sorted(), "{writes:?}");
        writes.iter().map(Vec::len).collect()
    }

    #[tokio::test]
    async fn who_is_ready_at_once_is_written_in_batches() {
        assert_eq!(sizes(3).await, [3]);
        assert_eq!(sizes(8).await, [3, 3, 2]);
        assert_eq!(sizes(64).await, [3, 32, 29]);
    }

    #[tokio::test]
    async fn a_crowd_is_through_in_few_steps() {
        let sizes = sizes(10_000).await;
        assert!(sizes.len() <= 12, "{sizes:?}");
    }

    #[tokio::test]
    async fn who_gives_up_takes_no_turn() {
        let stagger = Stagger::default();
        let mut under_way = Vec::new();
        for _ in 0..FEW {
            under_way.push(stagger.turn().await);
        }
        for _ in 0..3 {
            let mut given_up = std::pin::pin!(stagger.turn());
            assert!(poll_fn(|context| Poll::Ready(given_up.as_mut().poll(context))).await.is_pending());
        }
        // The next opens a batch of its own, however many are gone.
        under_way.push(stagger.turn().await);
        drop(under_way);
        assert_eq!(stagger.under_way.load(Ordering::Relaxed), 0);
    }
}
