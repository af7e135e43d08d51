//! Group commit: where many tasks write at once, their writes share a request.
//!
//! A request costs the server a place in its queues, in its log and an answer, and the driver system calls, however many
//! writes it carries. So a write goes by itself while few are under way, and waits for nobody. Beyond that the writes
//! that come while a request is under way go together in the next one.
//!
//! The server does all the writes of a request or none. It names the one that cannot be done: that one is answered, the
//! others are sent again, each by itself, and the next requests carry fewer. They do so after a connection that broke, too:
//! a server breaks it when a request is longer than it takes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tokio::sync::oneshot;
use zookeeper_client as zk;

use crate::error::is_answer;
use crate::layout::Draft;
use crate::session::Session;
use crate::table::Entry;

/// How many writes go by themselves. Fewer would make a few tasks wait for each other, where the server does their
/// writes side by side.
const SINGLES: usize = 8;

/// How many tasks send what has gathered: while one waits for its answer the other sends what came meanwhile.
const CARRIERS: usize = 2;

/// The most writes in a request, and about how many bytes: servers take a megabyte.
const MOST: usize = 64;
const BYTES: usize = 256 * 1024;

/// What came of a write: the results of its steps, or why it was not done, with the step that cannot be.
pub(crate) type Done = Result<Vec<zk::MultiWriteResult>, zk::MultiWriteError>;

/// Steps that are done together.
pub(crate) enum Write {
    /// Makes the node of a name, a container, and the first entry in it, at this path.
    Join { draft: Arc<Draft>, path: String, acls: zk::Acls<'static> },
    /// Deletes an entry and the node of its name.
    Leave(Arc<Entry>),
}

impl Write {
    fn steps(&self) -> usize {
        match self {
            Self::Join { .. } => 3,
            Self::Leave(_) => 2,
        }
    }

    fn add_to(&self, writer: &mut zk::MultiWriter<'_>) -> Result<(), zk::Error> {
        match self {
            Self::Join { draft, path, acls } => {
                writer.add_create(&draft.parent, b"", &zk::CreateMode::Container.with_acls(*acls))?;
                writer.add_create(path, b"", &zk::CreateMode::Ephemeral.with_acls(*acls))?;
                // Servers do not tell the number of a node that is created in such a step. They tell it here.
                writer.add_set_data(path, &draft.data, Some(0))
            }
            Self::Leave(entry) => {
                writer.add_delete(&entry.path, None)?;
                writer.add_delete(entry.parent(), None)
            }
        }
    }

    /// About how long it is in a request.
    fn bytes(&self) -> usize {
        match self {
            Self::Join { draft, path, .. } => 256 + 3 * path.len() + draft.data.len(),
            Self::Leave(entry) => 64 + 2 * entry.path.len(),
        }
    }
}

/// The writes of a session that are under way.
pub(crate) struct Group {
    singles: AtomicUsize,
    gathered: Mutex<Gathered>,
}

struct Gathered {
    waiting: VecDeque<Waiting>,
    carriers: usize,
    /// How many writes share a request: all that may, until one of them could not be done.
    share: usize,
}

struct Waiting {
    write: Write,
    tell: oneshot::Sender<Done>,
}

impl Default for Group {
    fn default() -> Self {
        let gathered = Gathered { waiting: VecDeque::new(), carriers: 0, share: MOST };
        Self { singles: AtomicUsize::new(0), gathered: Mutex::new(gathered) }
    }
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place among those that go by themselves. Whoever keeps one and does not go on keeps nobody from going together.
    fn single(&self) -> Option<Single<'_>> {
        let place = Single(&self.singles);
        (self.singles.fetch_add(1, Ordering::Relaxed) < SINGLES).then_some(place)
    }

    /// Notes whether a shared request was done.
    fn learn(&self, done: bool) {
        let mut gathered = self.lock();
        gathered.share = if done { (gathered.share * 2).min(MOST) } else { (gathered.share / 4).max(1) };
    }
}

struct Single<'a>(&'a AtomicUsize);

impl Drop for Single<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Does a write, by itself or together with others.
///
/// # Errors
/// What the server says about this write alone; [`zk::Error::ConnectionLoss`] also when the tasks that send have ended
/// with their runtime.
///
/// # Cancel safety
/// Dropped, the write may be done or not.
pub(crate) async fn write(session: &Arc<Session>, write: Write) -> Done {
    let group = session.group();
    if let Some(_place) = group.single() {
        return send(session, [&write]).await;
    }
    let (tell, told) = oneshot::channel();
    let begin = {
        let mut gathered = group.lock();
        gathered.waiting.push_back(Waiting { write, tell });
        let begin = gathered.carriers < CARRIERS;
        gathered.carriers += usize::from(begin);
        begin
    };
    if begin {
        // A task of its own: whoever gathers others' writes must not stand still with the one who began it.
        session.runtime().spawn(carry(Carrier { session: Arc::clone(session), done: false }));
    }
    told.await.unwrap_or_else(|_| Err(zk::Error::ConnectionLoss.into()))
}

async fn send(session: &Session, writes: impl IntoIterator<Item = &Write>) -> Done {
    let client = session.client()?;
    let mut writer = client.new_multi_writer();
    for write in writes {
        write.add_to(&mut writer)?;
    }
    writer.commit().await
}

/// One that sends what has gathered.
struct Carrier {
    session: Arc<Session>,
    done: bool,
}

impl Carrier {
    /// The next requests; `None` when nothing has gathered, and this one is not counted any more.
    fn next(&mut self) -> Option<Vec<Vec<Waiting>>> {
        let mut gathered = self.session.group().lock();
        let (share, mut bytes) = (gathered.share, 0);
        let mut requests: Vec<Vec<Waiting>> = Vec::new();
        for _ in 0..MOST {
            let Some(waiting) = gathered.waiting.pop_front() else { break };
            // Whoever does not wait any more gets nothing, and so has nothing to undo.
            if waiting.tell.is_closed() {
                continue;
            }
            bytes += waiting.write.bytes();
            match requests.last_mut() {
                Some(last) if last.len() < share => last.push(waiting),
                _ => requests.push(vec![waiting]),
            }
            if bytes >= BYTES {
                break;
            }
        }
        if requests.is_empty() && gathered.waiting.is_empty() {
            gathered.carriers -= 1;
            self.done = true;
            return None;
        }
        Some(requests)
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if !self.done {
            // Its runtime is gone, and nobody will send these.
            let mut gathered = self.session.group().lock();
            gathered.carriers -= 1;
            let waiting = std::mem::take(&mut gathered.waiting);
            drop(gathered);
            drop(waiting);
        }
    }
}

async fn carry(mut carrier: Carrier) {
    while let Some(requests) = carrier.next() {
        let session = &carrier.session;
        join_all(requests.into_iter().map(|request| send_together(session, request))).await;
    }
}

/// Sends these in one request, and tells each what came of it.
async fn send_together(session: &Session, mut request: Vec<Waiting>) {
    let done = send(session, request.iter().map(|waiting| &waiting.write)).await;
    // One by itself that cannot be done says nothing about sharing.
    if done.is_ok() || request.len() > 1 {
        session.group().learn(done.is_ok());
    }
    let error = match done {
        Ok(results) => {
            let mut results = results.into_iter();
            for Waiting { write, tell } in request {
                let _ = tell.send(Ok(results.by_ref().take(write.steps()).collect()));
            }
            return;
        }
        Err(error) => error,
    };
    if let zk::MultiWriteError::OperationFailed { index, source } = &error
        && let Some((at, index)) = whose(request.iter().map(|waiting| waiting.write.steps()), *index)
    {
        let cannot = request.swap_remove(at);
        let _ = cannot.tell.send(Err(zk::MultiWriteError::OperationFailed { index, source: source.clone() }));
    } else if request.len() == 1 || !is_refused(&zk::Error::from(error.clone())) {
        for Waiting { tell, .. } in request {
            let _ = tell.send(Err(error.clone()));
        }
        return;
    }
    join_all(request.into_iter().map(async |Waiting { write, tell }| {
        let _ = tell.send(send(session, [&write]).await);
    }))
    .await;
}

/// Whether nothing was done because of what was asked: somebody else may get a better answer.
fn is_refused(error: &zk::Error) -> bool {
    is_answer(error) || matches!(error, zk::Error::BadArguments(_))
}

/// Whose step this is of writes with so many steps each, and which of its steps.
fn whose(steps: impl Iterator<Item = usize>, mut index: usize) -> Option<(usize, usize)> {
    for (at, steps) in steps.enumerate() {
        if index < steps {
            return Some((at, index));
        }
        index -= steps;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_somebodys() {
        let whose = |index| whose([3, 2, 3].into_iter(), index);
        let all: Vec<_> = (0..8).map_while(whose).collect();
        assert_eq!(all, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]);
        assert_eq!(whose(8), None);
    }

    #[test]
    fn few_go_by_themselves_and_requests_carry_fewer_after_a_failure() {
        let group = Group::default();
        let places: Vec<_> = std::iter::from_fn(|| group.single()).collect();
        assert_eq!(places.len(), SINGLES);
        drop(places);
        assert_eq!(
            std::iter::from_fn(|| group.single()).take(2 * SINGLES).count(),
            2 * SINGLES,
            "dropped at once"
        );
        let shares = |done: &[bool]| {
            done.iter().for_each(|done| group.learn(*done));
            group.lock().share
        };
        assert_eq!(shares(&[]), MOST);
        assert_eq!(shares(&[false]), MOST / 4);
        assert_eq!(shares(&[false; 9]), 1);
        assert_eq!(shares(&[true, true]), 4);
        assert_eq!(shares(&[true; 9]), MOST);
    }
}
