//! Following a line: one watch on all that comes and goes under a name, for the waiters of a session.
//!
//! A waiter that watches the node before its own must look at the line when that one goes: it may have left without ever
//! holding. A waiter that knows who is ahead and hears of all who leave need not look: nobody comes back and nobody
//! joins ahead, so it holds when the last of them has gone, unless its own node, evicted, went first. The listing that
//! comes with its join says who is ahead; the watch stood before that, so it brings every departure since. It stays for a
//! while after the last waiter: a busy name is watched once.
//!
//! In a long line everybody would hear of everybody: there a waiter watches the node before its own ([`MOST`]).
//!
//! What happens while a session is disconnected is never told, and the driver does not set such a watch again: whoever
//! follows then looks anew.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::join;
use onelock_core::Result;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use zookeeper_client as zk;

use crate::backend::Core;
use crate::error::{failed, is_answer};
use crate::line::Line;
use crate::look;
use crate::session::Session;
use crate::table::Entry;

/// The most entries ahead of a waiter that follows the line.
pub(crate) const MOST: usize = 8;

/// How many departures are remembered for those who have listed the line and do not follow it yet.
const REMEMBERED: usize = 64;

/// How long a line is followed for nobody.
const LINGER: Duration = Duration::from_secs(10);

/// A session and the node of a name.
type Key = (i64, String);

/// The lines that a client follows.
#[derive(Default)]
pub(crate) struct Follows {
    lines: Mutex<HashMap<Key, Arc<Follow>>>,
    /// The servers have no such watches: they are before 3.6, or run `WatchManagerOptimized`.
    unsupported: AtomicBool,
}

/// One line that is followed.
pub(crate) struct Follow(Mutex<State>);

struct State {
    phase: Phase,
    /// How many have left since it stands, and the names of the latest.
    count: usize,
    gone: VecDeque<String>,
    followers: HashMap<usize, Follower>,
    last_id: usize,
    idle_since: Instant,
    /// Another watch of the driver is on the same node: it would not tell the server to drop this one.
    shared: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Opening,
    Live,
    Over,
}

struct Follower {
    own: String,
    ahead: Vec<String>,
    /// Dropped untold when it has to look anew.
    tell: oneshot::Sender<()>,
}

impl Follows {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Follow>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, session: &Session, parent: &str) -> Option<Arc<Follow>> {
        let follows = self.lock();
        if follows.is_empty() { None } else { follows.get(&(session.id(), parent.to_owned())).cloned() }
    }

    /// From where on departures are known, for a listing that is sent now; `None` when the line is not followed.
    pub(crate) fn mark(&self, session: &Session, parent: &str) -> Option<Mark> {
        self.get(session, parent)?.mark()
    }

    /// Another watch is about to be set on the node of the name itself.
    pub(crate) fn share(&self, session: &Session, parent: &str) {
        if let Some(follow) = self.get(session, parent) {
            follow.lock().shared = true;
        }
    }

    fn end(&self, key: &Key, follow: &Arc<Follow>) {
        let mut follows = self.lock();
        if follows.get(key).is_some_and(|other| Arc::ptr_eq(other, follow)) {
            follows.remove(key);
        }
        drop(follows);
        follow.end();
    }
}

/// A moment from which on every departure is known.
pub(crate) struct Mark {
    follow: Arc<Follow>,
    count: usize,
}

impl Mark {
    /// Follows the line for the node `own`, which has these ahead by a listing that was sent after the mark; `None` when too
    /// much has happened since.
    pub(crate) fn follow(&self, own: &str, mut ahead: Vec<String>) -> Option<Following> {
        let mut state = self.follow.lock();
        let missed = state.count - self.count;
        if state.phase != Phase::Live || missed > state.gone.len() {
            return None;
        }
        let since = state.gone.len() - missed;
        let has_left = |node: &str| state.gone.range(since..).any(|gone| gone == node);
        ahead.retain(|node| !has_left(node));
        let evicted = has_left(own);
        state.last_id += 1;
        let id = state.last_id;
        let (tell, told) = oneshot::channel();
        if evicted {
            drop(tell);
        } else if ahead.is_empty() {
            let _ = tell.send(());
        } else {
            state.followers.insert(id, Follower { own: own.to_owned(), ahead, tell });
        }
        drop(state);
        Some(Following { follow: Arc::clone(&self.follow), id, told })
    }

    /// Follows no more, if nobody does: the line has become a long one.
    pub(crate) fn give_up(&self) {
        let mut state = self.follow.lock();
        if state.is_unused() {
            state.phase = Phase::Over;
        }
    }
}

/// One waiter that follows; ended by its drop.
pub(crate) struct Following {
    follow: Arc<Follow>,
    id: usize,
    told: oneshot::Receiver<()>,
}

impl Following {
    /// Ends when nobody is ahead any more; false when the line has to be looked at.
    pub(crate) async fn promoted(mut self) -> bool {
        (&mut self.told).await.is_ok()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut state = self.follow.lock();
        let follower = state.followers.remove(&self.id);
        state.idle_since = Instant::now();
        drop(state);
        drop(follower);
    }
}

impl State {
    fn is_unused(&self) -> bool {
        self.followers.is_empty() && !self.shared
    }
}

impl Follow {
    fn new() -> Self {
        Self(Mutex::new(State {
            phase: Phase::Opening,
            count: 0,
            gone: VecDeque::new(),
            followers: HashMap::new(),
            last_id: 0,
            idle_since: Instant::now(),
            shared: false,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark(self: Arc<Self>) -> Option<Mark> {
        let state = self.lock();
        if state.phase != Phase::Live {
            return None;
        }
        let count = state.count;
        drop(state);
        Some(Mark { follow: self, count })
    }

    /// A node has gone.
    fn left(&self, node: &str) {
        let mut state = self.lock();
        state.count += 1;
        if state.gone.len() == REMEMBERED {
            state.gone.pop_front();
        }
        state.gone.push_back(node.to_owned());
        let done = state.followers.extract_if(|_, follower| {
            follower.ahead.retain(|ahead| ahead != node);
            follower.ahead.is_empty() || follower.own == node
        });
        let done: Vec<_> = done.collect();
        drop(state);
        // Who was evicted is dropped untold, and looks.
        for (_, follower) in done.into_iter().filter(|(_, follower)| follower.own != node) {
            let _ = follower.tell.send(());
        }
    }

    /// Ends it if nobody has followed for long; whether it is over.
    fn end_if_idle(&self) -> bool {
        let mut state = self.lock();
        if state.is_unused() && state.idle_since.elapsed() >= LINGER {
            state.phase = Phase::Over;
        }
        state.phase == Phase::Over
    }

    /// Whoever follows looks anew.
    fn end(&self) {
        let mut state = self.lock();
        state.phase = Phase::Over;
        let followers = std::mem::take(&mut state.followers);
        drop(state);
        drop(followers);
    }
}

/// A line that is followed or about to be, until this is dropped.
struct Kept {
    core: Arc<Core>,
    key: Key,
    follow: Arc<Follow>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.core.follows.end(&self.key, &self.follow);
    }
}

/// Where a line stands that somebody wants to follow.
enum Begun {
    Now(Kept),
    /// Another waiter is about to, or it is just over.
    NotNow,
    Before,
}

fn begin(core: &Arc<Core>, session: &Session, parent: &str) -> Begun {
    let key = (session.id(), parent.to_owned());
    let mut follows = core.follows.lock();
    if let Some(follow) = follows.get(&key) {
        return if follow.lock().phase == Phase::Live { Begun::Before } else { Begun::NotNow };
    }
    let follow = Arc::new(Follow::new());
    follows.insert(key.clone(), Arc::clone(&follow));
    drop(follows);
    Begun::Now(Kept { core: Arc::clone(core), key, follow })
}

/// What came of beginning to follow.
pub(crate) enum Followed {
    /// The line as it is behind the watch.
    Line(Line, Mark),
    /// It is followed already: a listing is all it takes.
    Before,
    /// Not now, or not on this server.
    No,
}

/// Sets the watch, and lists the line behind it.
pub(crate) async fn begin_to_follow(core: &Arc<Core>, entry: &Entry) -> Result<Followed> {
    let (session, parent) = (&entry.session, entry.parent());
    if core.follows.unsupported.load(Ordering::Relaxed) {
        return Ok(Followed::No);
    }
    let kept = match begin(core, session, parent) {
        Begun::Now(kept) => kept,
        Begun::NotNow => return Ok(Followed::No),
        Begun::Before => return Ok(Followed::Before),
    };
    let fail = |error| failed(error, "watch", parent);
    let client = session.client().map_err(fail)?;
    // Sent in this order: the session is answered in order, so what the listing does not show the watch brings.
    let watch = client.watch(parent, zk::AddWatchMode::PersistentRecursive);
    let listed = client.list_children(parent);
    let (watch, listed) = join!(session.ask(watch), session.ask(listed));
    let watcher = match watch {
        Ok(watcher) => watcher,
        Err(zk::Error::Unimplemented | zk::Error::MarshallingError) => {
            core.follows.unsupported.store(true, Ordering::Relaxed);
            return Ok(Followed::No);
        }
        Err(error) if is_answer(&error) => return Ok(Followed::No),
        Err(error) => return Err(fail(error)),
    };
    let line = match listed {
        Ok(children) => look::read(children, parent)?,
        Err(zk::Error::NoNode) => Line::default(),
        Err(error) => return Err(failed(error, "list", parent)),
    };
    kept.follow.lock().phase = Phase::Live;
    let mark = Arc::clone(&kept.follow).mark();
    core.target.runtime.spawn(listen(kept, watcher));
    let line = look::ordered(session, parent, line).await?;
    Ok(mark.map_or(Followed::No, |mark| Followed::Line(line, mark)))
}

/// Takes what the watch brings, until the connection breaks or nobody has followed for long.
async fn listen(kept: Kept, mut watcher: zk::PersistentWatcher) {
    loop {
        match timeout(LINGER, watcher.changed()).await {
            Ok(event) if event.event_type == zk::EventType::Session => return,
            Ok(event) if event.event_type == zk::EventType::NodeDeleted => {
                let node = event.path.strip_prefix(&kept.key.1[..]).and_then(|rest| rest.strip_prefix('/'));
                node.into_iter().for_each(|node| kept.follow.left(node));
            }
            Ok(_) | Err(_) => {}
        }
        if kept.follow.end_if_idle() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Arc<Follow> {
        let follow = Arc::new(Follow::new());
        follow.lock().phase = Phase::Live;
        follow
    }

    fn nodes(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn told(following: &mut Following) -> Option<bool> {
        match following.told.try_recv() {
            Ok(()) => Some(true),
            Err(oneshot::error::TryRecvError::Closed) => Some(false),
            Err(oneshot::error::TryRecvError::Empty) => None,
        }
    }

    #[tokio::test]
    async fn it_holds_when_all_ahead_have_gone_in_any_order() {
        let follow = live();
        let mark = Arc::clone(&follow).mark().unwrap();
        let mut second = mark.follow("own", nodes(&["a"])).unwrap();
        let mut third = mark.follow("own", nodes(&["a", "b"])).unwrap();
        follow.left("b");
        assert_eq!((told(&mut second), told(&mut third)), (None, None));
        follow.left("stranger");
        assert_eq!((told(&mut second), told(&mut third)), (None, None));
        follow.left("a");
        assert_eq!((told(&mut second), told(&mut third)), (Some(true), Some(true)));
        assert!(follow.lock().followers.is_empty());
    }

    #[tokio::test]
    async fn who_was_evicted_is_not_promoted() {
        let follow = live();
        let mark = Arc::clone(&follow).mark().unwrap();
        let mut evicted = mark.follow("own", nodes(&["a"])).unwrap();
        let mut next = mark.follow("next", nodes(&["a", "own"])).unwrap();
        follow.left("own");
        assert_eq!((told(&mut evicted), told(&mut next)), (Some(false), None));
        follow.left("a");
        assert_eq!(told(&mut next), Some(true));
        assert!(!mark.follow("own", nodes(&["a"])).unwrap().promoted().await, "before it followed");
    }

    #[tokio::test]
    async fn who_left_between_the_listing_and_the_following_is_known() {
        let follow = live();
        follow.left("before");
        let mark = Arc::clone(&follow).mark().unwrap();
        follow.left("a");
        assert!(mark.follow("own", nodes(&["a"])).unwrap().promoted().await);
        // Gone before the mark: the listing has it, so it is another node of that name.
        assert_eq!(told(&mut mark.follow("own", nodes(&["before"])).unwrap()), None);
        for i in 0..REMEMBERED {
            follow.left(&i.to_string());
        }
        assert!(mark.follow("own", nodes(&["x"])).is_none(), "what left is not all remembered");
        assert!(Arc::clone(&follow).mark().unwrap().follow("own", nodes(&["x"])).is_some());
    }

    #[tokio::test]
    async fn when_the_watch_breaks_everybody_looks_anew() {
        let follow = live();
        let mark = Arc::clone(&follow).mark().unwrap();
        let following = mark.follow("own", nodes(&["a"])).unwrap();
        follow.end();
        assert!(!following.promoted().await);
        assert!(mark.follow("own", nodes(&["a"])).is_none());
        assert!(follow.mark().is_none());
    }

    #[tokio::test]
    async fn a_line_that_became_long_is_followed_by_nobody_new() {
        let follow = live();
        let mark = Arc::clone(&follow).mark().unwrap();
        let following = mark.follow("own", nodes(&["a"])).unwrap();
        mark.give_up();
        assert!(!follow.end_if_idle(), "somebody follows yet");
        drop(following);
        mark.give_up();
        assert!(follow.end_if_idle() && mark.follow("own", nodes(&["a"])).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_when_nobody_has_followed_for_long() {
        let follow = live();
        let following = Arc::clone(&follow).mark().unwrap().follow("own", nodes(&["a"])).unwrap();
        tokio::time::advance(LINGER * 2).await;
        assert!(!follow.end_if_idle());
        drop(following);
        assert!(!follow.end_if_idle());
        tokio::time::advance(LINGER).await;
        assert!(follow.end_if_idle());
        assert!(follow.mark().is_none());
    }
}
