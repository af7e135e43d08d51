//! Listings that joins share.
//!
//! A join lists the line behind its own node, in the same round trip. Where many tasks of a client join at once each would get
//! the whole line, and a crowd would be answered with its square. So who joins while a listing is under way waits for the next
//! one, which is sent when that is answered, and is one for all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use zookeeper_client as zk;

use crate::session::Session;

/// The children.
pub(crate) type Listed = Result<Vec<String>, zk::Error>;

/// A listing that is under way or will be.
pub(crate) type Listing = Shared<BoxFuture<'static, Listed>>;

/// A session and the node of a name.
type Key = (i64, String);

/// The listings of a client that are under way.
#[derive(Default)]
pub(crate) struct Listings(Arc<Lines>);

type Lines = Mutex<HashMap<Key, Under>>;

struct Under {
    now: Listing,
    next: Option<Listing>,
}

fn lock(lines: &Lines) -> MutexGuard<'_, HashMap<Key, Under>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listings {
    /// The children of `parent` as they are behind every request that the session was given before.
    pub(crate) fn behind(&self, session: &Session, client: &Arc<zk::Client>, parent: &str) -> Listing {
        let (client, path) = (Arc::clone(client), parent.to_owned());
        self.share((session.id(), parent.to_owned()), move || {
            let listed = client.get_children(&path);
            Box::pin(async move { listed.await.map(|(children, _)| children) })
        })
    }

    /// `list` sends a listing at once, and its future brings the answer.
    fn share(&self, key: Key, list: impl FnOnce() -> BoxFuture<'static, Listed> + Send + 'static) -> Listing {
        let lines = Arc::downgrade(&self.0);
        let mut all = lock(&self.0);
        let Some(under) = all.get_mut(&key) else {
            let now = finish(lines, key.clone(), list()).boxed().shared();
            all.insert(key, Under { now: now.clone(), next: None });
            return now;
        };
        let before = under.now.clone();
        let next = under.next.get_or_insert_with(|| follow(lines, key, before, list).boxed().shared());
        next.clone()
    }
}

/// The next listing: sent when the one before it has been answered, for all who have joined by then.
async fn follow(
    lines: Weak<Lines>,
    key: Key,
    before: Listing,
    list: impl FnOnce() -> BoxFuture<'static, Listed>,
) -> Listed {
    // What it says is for others.
    let _ = before.await;
    let answer = {
        let lines = lines.upgrade();
        let mut all = lines.as_deref().map(lock);
        if let Some(under) = all.as_mut().and_then(|all| all.get_mut(&key))
            && let Some(next) = under.next.take()
        {
            under.now = next;
        }
        // Under the lock: whoever does not share it any more has not joined before it.
        list()
    };
    finish(lines, key, answer).await
}

/// Waits for the answer, after which nobody is told to wait.
async fn finish(lines: Weak<Lines>, key: Key, answer: BoxFuture<'static, Listed>) -> Listed {
    let answer = answer.await;
    if let Some(lines) = lines.upgrade() {
        let mut all = lock(&lines);
        if all.get(&key).is_some_and(|under| under.next.is_none()) {
            all.remove(&key);
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::poll;
    use tokio::sync::Semaphore;

    use super::*;

    /// A server that answers as often as it is let, with how many had asked when it was sent.
    struct Server {
        listings: Listings,
        joined: Arc<AtomicUsize>,
        sent: Arc<AtomicUsize>,
        answers: Arc<Semaphore>,
    }

    impl Server {
        fn new() -> Self {
            let (joined, sent, answers) = (Arc::default(), Arc::default(), Arc::new(Semaphore::new(0)));
            Self { listings: Listings::default(), joined, sent, answers }
        }

        /// Joins, and lists the line behind that.
        fn join(&self, parent: &str) -> Listing {
            self.joined.fetch_add(1, Ordering::SeqCst);
            let (joined, sent) = (Arc::clone(&self.joined), Arc::clone(&self.sent));
            let answers = Arc::clone(&self.answers);
            self.listings.share((1, parent.to_owned()), move || {
                sent.fetch_add(1, Ordering::SeqCst);
                let seen = joined.load(Ordering::SeqCst);
                Box::pin(async move {
                    answers.acquire().await.unwrap().forget();
                    Ok((0..seen).map(|i| i.to_string()).collect())
                })
            })
        }

        fn sent(&self) -> usize {
            self.sent.load(Ordering::SeqCst)
        }
    }

    fn seen(listed: Listed) -> usize {
        listed.unwrap().len()
    }

    #[tokio::test]
    async fn a_crowd_is_answered_twice() {
        let server = Server::new();
        let first = server.join("/a");
        let mut crowd: Vec<_> = (0..9).map(|_| server.join("/a")).collect();
        assert_eq!(server.sent(), 1, "the first asks at once, and the others wait for its answer");
        let mut last = crowd.pop().unwrap();
        assert!(poll!(&mut last).is_pending());
        server.answers.add_permits(2);
        assert_eq!(seen(first.await), 1);
        for listing in crowd {
            assert_eq!(seen(listing.await), 10, "it was sent behind them all");
        }
        assert_eq!((seen(last.await), server.sent()), (10, 2));
        assert!(lock(&server.listings.0).is_empty());
    }

    #[tokio::test]
    async fn who_joins_when_the_next_was_sent_gets_another() {
        let server = Server::new();
        let (first, mut second) = (server.join("/a"), server.join("/a"));
        server.answers.add_permits(1);
        assert_eq!(seen(first.await), 1);
        assert!(poll!(&mut second).is_pending());
        assert_eq!(server.sent(), 2);
        let third = server.join("/a");
        server.answers.add_permits(2);
        assert_eq!((seen(second.await), seen(third.await), server.sent()), (2, 3, 3));
    }

    #[tokio::test]
    async fn it_goes_on_when_the_first_does_not_want_it_any_more() {
        let server = Server::new();
        drop(server.join("/a"));
        let second = server.join("/a");
        server.answers.add_permits(3);
        assert_eq!(seen(second.await), 2);
        assert_eq!(seen(server.join("/a").await), 3, "nothing is left of it");
    }

    #[tokio::test]
    async fn another_line_is_another_listing() {
        let server = Server::new();
        let (_one, _other) = (server.join("/a"), server.join("/b"));
        assert_eq!(server.sent(), 2);
    }
}
