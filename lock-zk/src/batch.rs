//! Writes of many tasks that share a request.
//!
//! A request costs the server a place in its queues, in its log and an answer, and the driver system calls, however many
//! writes it carries. So a write goes by itself while few are under way, and waits for nobody. Beyond that the writes
//! that come while a request is under way go together in the next one. It doubles the rate of 64 names.
//!
//! The server does all the writes of a request or none. Where one cannot be done each of them is sent again by itself.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, Semaphore, oneshot};
use zookeeper_client as zk;

/// How many writes go by themselves. Fewer would make a few tasks wait for each other, where the server does their
/// writes side by side.
const SINGLES: usize = 8;

/// How many tasks send what has gathered: while one waits for its answer the other sends what came meanwhile.
const CARRIERS: usize = 2;

/// The most writes in a request: of the longest names, under the longest path, less than a quarter of the megabyte that servers take.
const MOST: usize = 32;

/// What came of a write: the results of its steps, or the number of the step that cannot be done and why.
pub(crate) type Written = Result<Vec<zk::MultiWriteResult>, (usize, zk::Error)>;

/// The same, or what happened to the request.
pub(crate) type Done = Result<Written, zk::Error>;

/// One step of a write.
pub(crate) enum Step {
    /// The node has this version.
    Check(String, i32),
    Create(String, zk::CreateMode, zk::Acls<'static>),
    Set(String, Arc<[u8]>),
    Delete(String),
}

/// Steps that are done together or not at all.
pub(crate) type Write = Vec<Step>;

/// The writes of a session that are under way.
pub(crate) struct Batch {
    /// Places among requests that are sent alone. A stalled owner of one keeps no others from being sent together.
    singles: Semaphore,
    gathered: UnboundedSender<Gathered>,
}

struct Gathered {
    client: Arc<zk::Client>,
    write: Write,
    tell: oneshot::Sender<Done>,
}

impl Batch {
    pub(crate) fn new(runtime: &Handle) -> Self {
        let (gathered, waiting) = unbounded_channel();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..CARRIERS {
            // Tasks of their own: a caller that is not polled must not hold up the writes of others.
            runtime.spawn(carry(Arc::clone(&waiting)));
        }
        Self { singles: Semaphore::new(SINGLES), gathered }
    }

    /// Does a write, by itself or together with others.
    ///
    /// # Cancel safety
    /// Dropped, the write may be done or not.
    pub(crate) async fn write(&self, client: Arc<zk::Client>, write: Write) -> Done {
        if let Ok(_place) = self.singles.try_acquire() {
            return send(&client, &write).await;
        }
        let (tell, done) = oneshot::channel();
        // Where the runtime is gone nobody receives it, and nobody answers.
        let _ = self.gathered.send(Gathered { client, write, tell });
        done.await.unwrap_or(Err(zk::Error::ConnectionLoss))
    }
}

/// Sends what gathers, until the session is gone.
async fn carry(gathered: Arc<Mutex<UnboundedReceiver<Gathered>>>) {
    loop {
        let mut request = Vec::new();
        if gathered.lock().await.recv_many(&mut request, MOST).await == 0 {
            return;
        }
        // A caller that does not wait any more gets nothing, and so has nothing to undo.
        request.retain(|waiting| !waiting.tell.is_closed());
        send_together(request).await;
    }
}

/// Does these steps in one request, and waits for nobody.
pub(crate) async fn send(client: &zk::Client, steps: impl IntoIterator<Item = &Step>) -> Done {
    let mut writer = client.new_multi_writer();
    for step in steps {
        match step {
            Step::Check(path, version) => writer.add_check_version(path, *version)?,
            Step::Create(path, mode, acls) => writer.add_create(path, b"", &mode.with_acls(*acls))?,
            Step::Set(path, data) => writer.add_set_data(path, data, Some(0))?,
            Step::Delete(path) => writer.add_delete(path, None)?,
        }
    }
    match writer.commit().await {
        Ok(results) => Ok(Ok(results)),
        Err(zk::MultiWriteError::OperationFailed { index, source }) => Ok(Err((index, source))),
        Err(error) => Err(error.into()),
    }
}

/// Waits until the server has done every write that was answered before, by whichever server: this one is the last of them,
/// and changes nothing. A `sync` does not do: the leader answers its own clients' at once, though it may be behind a follower
/// with writes that both have committed.
pub(crate) async fn barrier(client: &zk::Client) -> Result<(), zk::Error> {
    // A refused write is logged and committed as well.
    send(client, [&Step::Check("/".to_owned(), -1)]).await.map(drop)
}

/// Sends these in one request, and answers each.
async fn send_together(request: Vec<Gathered>) {
    let Some(Gathered { client, .. }) = request.first() else { return };
    match send(client, request.iter().flat_map(|waiting| &waiting.write)).await {
        Ok(Ok(results)) => {
            let mut results = results.into_iter();
            for Gathered { write, tell, .. } in request {
                let _ = tell.send(Ok(Ok(results.by_ref().take(write.len()).collect())));
            }
        }
        // Nothing was done.
        Ok(Err(_)) => {
            let again = request.into_iter().map(async |Gathered { client, write, tell }| {
                // A caller that does not wait any more may already have looked for what it has made.
                if !tell.is_closed() {
                    let _ = tell.send(send(&client, &write).await);
                }
            });
            join_all(again).await;
        }
        Err(error) => {
            for Gathered { tell, .. } in request {
                let _ = tell.send(Err(error.clone()));
            }
        }
    }
}
