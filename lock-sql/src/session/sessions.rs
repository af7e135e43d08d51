//! The sessions of a client: how they are made, kept for the next lock, and asked; and one more that looks at the others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use onelock_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::dialect::{Answer, Ask, Dialect, Id, Whose};
use super::names::Key;

/// How soon a server that takes no more connections is asked for one again.
const AGAIN: Duration = Duration::from_secs(1);

/// How soon after the request to end a session the server is asked whether it has gone.
const SOON: Duration = Duration::from_micros(200);

/// One session of the server.
pub(super) struct Session<C> {
    conn: C,
    pub(super) id: Id,
    /// How long the server lets it be idle; zero is for ever.
    pub(super) idle: Duration,
    /// When the last request was sent that it has answered.
    used: Instant,
    /// The right to hold or to wait; a session that does neither has none.
    permit: Option<OwnedSemaphorePermit>,
}

impl<C> Session<C> {
    /// Whether the server may have ended it for having been idle.
    fn has_ended(&self) -> bool {
        !self.idle.is_zero() && self.used.elapsed() >= self.idle
    }
}

/// A request under way, with its session: dropped, the session's connection is closed.
pub(super) type Asked<C> = BoxFuture<'static, (Session<C>, Result<Answer>)>;

pub(super) struct Sessions<D: Dialect> {
    dialect: Arc<D>,
    runtime: Handle,
    /// How long the server may take to answer.
    pub(super) limit: Duration,
    all: u16,
    permits: Arc<Semaphore>,
    /// The one that was used last is taken first.
    free: Mutex<Vec<Session<D::Conn>>>,
    given: Notify,
    /// The session that looks and ends others.
    side: tokio::sync::Mutex<Option<D::Conn>>,
}

impl<D: Dialect> Sessions<D> {
    /// With the connections that opening has made: for the first lock, and to look at others.
    pub(super) fn new(dialect: D, all: u16, limit: Duration, [first, side]: [D::Conn; 2]) -> Arc<Self> {
        let sessions = Self {
            dialect: Arc::new(dialect),
            runtime: Handle::current(),
            limit,
            all,
            permits: Arc::new(Semaphore::new(all.into())),
            free: Mutex::default(),
            given: Notify::new(),
            side: tokio::sync::Mutex::new(Some(side)),
        };
        sessions.free().push(session::<D>(first, None));
        Arc::new(sessions)
    }

    fn free(&self) -> MutexGuard<'_, Vec<Session<D::Conn>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session for one lock, and whether it is new. While all hold or wait, or the server takes no more connections, the
    /// next one that is given back.
    pub(super) async fn get(&self) -> Result<(Session<D::Conn>, bool)> {
        let permit = timeout(self.limit, Arc::clone(&self.permits).acquire_owned()).await;
        let permit = permit.map_err(|_| self.full())?.map_err(|_| closed())?;
        let end = Instant::now() + self.limit;
        let is_full = |error: &Error| {
            std::error::Error::source(error).and_then(|cause| cause.downcast_ref()).is_some_and(D::is_full)
        };
        loop {
            let given = self.given.notified();
            if let Some(session) = self.pop() {
                return Ok((Session { permit: Some(permit), ..session }, false));
            }
            match self.connect().await {
                Ok(conn) => return Ok((session::<D>(conn, Some(permit)), true)),
                // Other clients give back connections of the server, too.
                Err(error) if is_full(&error) && Instant::now() < end => {
                    let left = end.saturating_duration_since(Instant::now());
                    let _ = timeout(left.min(AGAIN), given).await;
                }
                // Not distinguished from a request that was sent: giving back what was never asked for does no harm.
                Err(error) => return Err(error),
            }
        }
    }

    /// One that the server has not ended, as far as is known.
    fn pop(&self) -> Option<Session<D::Conn>> {
        let mut free = self.free();
        free.retain(|session| !session.has_ended());
        free.pop()
    }

    /// On the runtime of the store, whose end ends its connections.
    async fn connect(&self) -> Result<D::Conn> {
        let dialect = Arc::clone(&self.dialect);
        self.runtime.spawn(async move { dialect.connect().await }).await.unwrap_or_else(|_| Err(closed()))
    }

    /// Takes a session back that holds nothing and waits for nothing.
    pub(super) fn give(&self, mut session: Session<D::Conn>) {
        let permit = session.permit.take();
        if self.permits.is_closed() {
            return;
        }
        self.free().push(session);
        self.given.notify_one();
        // The caller that waited for it finds the session.
        drop(permit);
    }

    /// Closes the sessions that are free.
    pub(super) fn clear(&self) {
        self.free().clear();
    }

    pub(super) async fn close(&self) {
        self.permits.close();
        self.clear();
        self.side.lock().await.take();
    }

    pub(super) fn check_open(&self) -> Result<()> {
        if self.permits.is_closed() { Err(closed()) } else { Ok(()) }
    }

    /// Asks a session.
    pub(super) fn ask(&self, mut session: Session<D::Conn>, ask: Ask) -> Asked<D::Conn> {
        let dialect = Arc::clone(&self.dialect);
        Box::pin(async move {
            let (ended, sent, idle) = (session.has_ended(), Instant::now(), ask.idle(session.idle));
            match dialect.ask(&mut session.conn, &ask, idle).await {
                Ok(answer) => {
                    session.idle = idle.unwrap_or(session.idle);
                    session.used = sent;
                    (session, Ok(answer))
                }
                // Not every server says so before it ends a session.
                Err(error) if ended && error.is_unclear() => {
                    let text = "the server has ended the idle session";
                    (session, Err(Error::new(ErrorKind::Lost, text).caused_by(error)))
                }
                Err(error) => (session, Err(error)),
            }
        })
    }

    /// Asks by the session that looks, in a task of its own: a caller that is not polled must not keep it.
    pub(super) async fn aside<T: Send + 'static>(
        self: &Arc<Self>,
        ask: impl for<'a> Fn(&'a D, &'a mut D::Conn) -> BoxFuture<'a, Result<T>> + Send + 'static,
    ) -> Result<T> {
        let sessions = Arc::clone(self);
        let asked = self.runtime.spawn(async move {
            let mut side = sessions.side.lock().await;
            loop {
                let kept = side.take();
                let fresh = kept.is_none();
                let mut conn = match kept {
                    Some(conn) => conn,
                    None => sessions.dialect.connect().await?,
                };
                let answer = timeout(sessions.limit, ask(&sessions.dialect, &mut conn)).await;
                match answer.unwrap_or_else(|_| Err(silent())) {
                    Ok(answer) => {
                        *side = Some(conn).filter(|_| !sessions.permits.is_closed());
                        return Ok(answer);
                    }
                    // It broke while it was idle. Asking twice is asking once: what was ended stays ended.
                    Err(error) if broke(&error) && !fresh => {}
                    Err(error) => return Err(error),
                }
            }
        });
        asked.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Which of these sessions wait for their lock.
    pub(super) async fn waiting(self: &Arc<Self>, some: Vec<(i64, Key)>) -> Result<Vec<i64>> {
        let asked = self.aside(move |dialect, conn| {
            let some = some.clone();
            Box::pin(async move { dialect.waiting(conn, &some).await })
        });
        asked.await
    }

    /// Ends a session, which holds nothing any more when this is answered; whether it was there.
    pub(super) async fn end(self: &Arc<Self>, whose: Whose) -> Result<bool> {
        let (end, mut was_there, mut pause) = (Instant::now() + self.limit, false, SOON);
        loop {
            let whose = whose.clone();
            let ending = self.aside(move |dialect, conn| {
                let whose = whose.clone();
                Box::pin(async move { dialect.end(conn, &whose).await })
            });
            if !ending.await? {
                return Ok(was_there);
            }
            if Instant::now() > end {
                return Err(Error::new(ErrorKind::Timeout, "the session does not end"));
            }
            was_there = true;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn full(&self) -> Error {
        let text = format!(
            "all {} connections of this client hold or await a lock, each lock has one of its own; raise `connections`",
            self.all
        );
        Error::new(ErrorKind::Full, text).unsent()
    }
}

fn session<D: Dialect>(conn: D::Conn, permit: Option<OwnedSemaphorePermit>) -> Session<D::Conn> {
    Session { id: D::id(&conn), conn, idle: Duration::ZERO, used: Instant::now(), permit }
}

/// Whether a session has come to its end, as the server or the connection says.
pub(super) fn broke(error: &Error) -> bool {
    (error.is_retryable() && error.kind() != ErrorKind::Timeout) || error.kind() == ErrorKind::Lost
}

pub(super) fn strange() -> Error {
    Error::new(ErrorKind::Protocol, "the server answered something else than asked")
}

pub(super) fn silent() -> Error {
    Error::new(ErrorKind::Timeout, "the server did not answer in time")
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store of session locks was closed")
}
