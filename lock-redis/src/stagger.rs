//! Tasks that send through one connection do so in batches, so that the server works while the rest of them get ready.

use std::future::poll_fn;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

/// How many may send before the connection's task must have run.
const FIRST: u32 = 32;

/// One for each connection.
///
/// The task of a connection reads many answers at once and wakes everybody whom they are for. On a runtime of one thread
/// all of them get ready and send before that task runs again and writes: the server has nothing to do while the client
/// works, and the client nothing while the server does. So after some have sent the others step behind the task of the
/// connection in the runtime's queue: it writes what there is, and the two sides overlap.
#[derive(Debug, Default)]
pub(crate) struct Stagger {
    batch: Mutex<Batch>,
}

#[derive(Debug)]
struct Batch {
    number: u64,
    left: u32,
    stepped_back: u32,
}

impl Default for Batch {
    fn default() -> Self {
        Self { number: 0, left: FIRST, stepped_back: 0 }
    }
}

impl Stagger {
    /// Returns when it is time to send: at once, or after the tasks that are ready now have run. Nothing is kept for who
    /// does not come back.
    pub(crate) async fn turn(&self) {
        let mut stepped_back = None;
        poll_fn(|context| {
            let mut batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
            if stepped_back == Some(batch.number) {
                // The first that comes back. Half of those who wait, so that a crowd is through in few steps.
                batch.number += 1;
                batch.left = FIRST.max(batch.stepped_back / 2);
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
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;

    /// What a connection's task writes at once, when so many tasks send at once.
    async fn writes(tasks: usize) -> Vec<Vec<usize>> {
        let (stagger, (requests, mut sent)) = (Arc::new(Stagger::default()), unbounded_channel());
        let written = tokio::spawn(async move {
            let mut writes = Vec::new();
            while let Some(first) = sent.recv().await {
                writes.push(rest(first, &mut sent));
            }
            writes
        });
        for task in 0..tasks {
            let (stagger, requests) = (Arc::clone(&stagger), requests.clone());
            tokio::spawn(async move {
                stagger.turn().await;
                requests.send(task)
            });
        }
        drop(requests);
        written.await.unwrap()
    }

    fn rest(first: usize, sent: &mut UnboundedReceiver<usize>) -> Vec<usize> {
        std::iter::once(first).chain(std::iter::from_fn(|| sent.try_recv().ok())).collect()
    }

    #[tokio::test]
    async fn who_is_ready_at_once_is_written_in_batches() {
        let writes = writes(64).await;
        assert_eq!(writes.iter().map(Vec::len).collect::<Vec<_>>(), [32, 32]);
        assert!(writes.concat().is_sorted(), "{writes:?}");
    }

    #[tokio::test]
    async fn a_crowd_is_through_in_few_steps() {
        let writes = writes(10_000).await;
        assert_eq!(writes[0].len(), 32);
        assert!(writes.len() <= 12, "{}", writes.len());
        assert!(writes.concat().is_sorted());
    }

    #[tokio::test]
    async fn who_gives_up_takes_no_turn() {
        let stagger = Stagger::default();
        for _ in 0..FIRST {
            stagger.turn().await;
        }
        for _ in 0..3 {
            let mut given_up = std::pin::pin!(stagger.turn());
            assert!(poll_fn(|context| Poll::Ready(given_up.as_mut().poll(context))).await.is_pending());
        }
        // The next opens a batch of its own, however many are gone.
        stagger.turn().await;
    }
}
