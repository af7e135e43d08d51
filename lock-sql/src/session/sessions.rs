//! The sessions of a client: how they are made, kept for the next lock, and asked; and one more that looks at the others.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use onelock_core::{Error, ErrorKind, Release, Result};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedSemaphorePermit};
use tokio::time::{Instant, timeout};

use super::dialect::{Answer, Ask, Dialect, Id, Whose};
use super::names::Key;
use crate::pool::{Connect, Fault, Pool};

/// How soon after the request to end a session the server is asked whether it has gone.
const SOON: Duration = Duration::from_micros(200);

/// One session of the server.
pub(super) struct Session<C> {
    conn: C,
    pub(super) id: Id,
    /// How long the server lets it be idle; zero is for ever.
    pub(super) idle: Duration,
    /// When it has answered last: by then the server takes it for idle. A request that waits may take long.
    used: Instant,
    /// The right to hold or to wait; a session that does neither has none.
    permit: Option<OwnedSemaphorePermit>,
}

/// A request under way, with its session: dropped, the session's connection is closed.
pub(super) type Asked<C> = BoxFuture<'static, (Session<C>, Result<Answer>)>;

pub(super) struct Sessions<D: Dialect> {
    pub(super) pool: Pool<Maker<D>>,
    /// How long the server may take to answer.
    pub(super) limit: Duration,
    /// The session that looks and ends others, also when the server takes no more connections.
    side: Mutex<Option<Session<D::Conn>>>,
    /// How many looks were answered.
    answers: AtomicUsize,
}

/// Makes sessions.
pub(super) struct Maker<D> {
    dialect: Arc<D>,
    runtime: Handle,
    limit: Duration,
}

impl<D: Dialect> Connect for Maker<D> {
    type Conn = Session<D::Conn>;

    /// On the runtime of the store, whose end ends its connections.
    async fn connect(&self) -> Result<Self::Conn> {
        let (dialect, limit) = (Arc::clone(&self.dialect), self.limit);
        let connecting = self.runtime.spawn(async move { timeout(limit, dialect.connect()).await });
        let late = |_| Err(Error::new(ErrorKind::Unavailable, "the server did not set up a session in time"));
        let (conn, id) = connecting.await.map_err(|_| closed())?.unwrap_or_else(late)?;
        Ok(Session { conn, id, idle: Duration::ZERO, used: Instant::now(), permit: None })
    }

    fn fault(error: &sqlx::Error) -> Fault {
        D::fault(error)
    }
}

impl<D: Dialect> Sessions<D> {
    /// With one for the first lock, and the one that looks. The times are for connecting and for an answer.
    pub(super) async fn open(
        dialect: D,
        connections: u16,
        (connect, limit): (Duration, Duration),
    ) -> Result<Arc<Self>> {
        let (dialect, runtime) = (Arc::new(dialect), Handle::current());
        let pool = Pool::new(Maker { dialect, runtime, limit: connect + limit }, connections, limit);
        pool.give(pool.server.connect().await?);
        let side = Mutex::new(Some(pool.server.connect().await?));
        Ok(Arc::new(Self { pool, limit, side, answers: AtomicUsize::new(0) }))
    }

    pub(super) async fn close(&self) {
        self.pool.close();
        self.side.lock().await.take();
    }

    /// A session for one lock, and whether it is new. While all hold or wait, or the server takes no more connections, the
    /// next one that is given back.
    pub(super) async fn get(&self) -> Result<(Session<D::Conn>, bool)> {
        let permit = timeout(self.limit, Arc::clone(&self.pool.permits).acquire_owned()).await;
        let permit = permit.map_err(|_| full())?.map_err(|_| closed())?;
        // What fails is not distinguished from a request that was sent: giving back what was never asked for does no harm.
        let (session, used) = self.pool.conn(Instant::now() + self.limit).await?;
        Ok((Session { permit: Some(permit), ..session }, !used))
    }

    /// Takes a session back that holds nothing and waits for nothing.
    pub(super) fn give(&self, mut session: Session<D::Conn>) {
        let permit = session.permit.take();
        self.pool.give(session);
        // The caller that waited for it finds the session.
        drop(permit);
    }

    /// Asks a session.
    pub(super) fn ask(&self, mut session: Session<D::Conn>, ask: Ask) -> Asked<D::Conn> {
        let dialect = Arc::clone(&self.pool.server.dialect);
        Box::pin(async move {
            let (sent, idle) = (Instant::now(), ask.idle(session.idle));
            // The server may have ended it for having been idle.
            let ended = !session.idle.is_zero() && sent - session.used >= session.idle;
            match dialect.ask(&mut session.conn, &ask, idle).await {
                Ok(answer) => {
                    session.idle = idle.unwrap_or(session.idle);
                    session.used = Instant::now();
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
        let asked = self.pool.server.runtime.spawn(async move {
            let (pool, limit) = (&sessions.pool, sessions.limit);
            let mut turn = pin!(sessions.side.lock());
            let mut side = loop {
                let before = sessions.answers.load(Ordering::Relaxed);
                match timeout(limit, &mut turn).await {
                    Ok(side) => break side,
                    Err(_) if sessions.answers.load(Ordering::Relaxed) == before => return Err(silent()),
                    Err(_) => {}
                }
            };
            loop {
                let (mut session, used) = match side.take() {
                    Some(session) => (session, true),
                    None => pool.conn(Instant::now() + limit).await?,
                };
                let answer = timeout(limit, ask(&pool.server.dialect, &mut session.conn)).await;
                match answer.unwrap_or_else(|_| Err(silent())) {
                    Ok(answer) => {
                        sessions.answers.fetch_add(1, Ordering::Relaxed);
                        *side = Some(session).filter(|_| !pool.permits.is_closed());
                        return Ok(answer);
                    }
                    // It broke while it was idle. Asking twice is asking once: what was ended stays ended.
                    Err(error) if broke(&error) && used => pool.forget(),
                    Err(error) => return Err(error),
                }
            }
        });
        asked.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Which of these sessions wait for their lock.
    pub(super) async fn waiting(self: &Arc<Self>, some: Vec<(Id, Key)>) -> Result<Vec<Id>> {
        self.aside(move |dialect, conn| Box::pin(dialect.waiting(conn, some.clone()))).await
    }

    /// Ends a session, which holds nothing any more when this is answered, if it was there.
    pub(super) async fn end(self: &Arc<Self>, whose: Whose) -> Result<Release> {
        let (end, mut ended, mut pause) = (Instant::now() + self.limit, Release::NotHeld, SOON);
        loop {
            let whose = whose.clone();
            let ending = self.aside(move |dialect, conn| Box::pin(dialect.end(conn, whose.clone())));
            if !ending.await? {
                return Ok(ended);
            }
            if Instant::now() > end {
                return Err(Error::new(ErrorKind::Timeout, "the session does not end"));
            }
            ended = Release::Released;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}

fn full() -> Error {
    let text = "all connections of this client hold or await a lock, each lock has one of its own; raise `connections`";
    Error::new(ErrorKind::Full, text).unsent()
}

/// Whether a session has come to its end, as the server or the connection says.
pub(super) fn broke(error: &Error) -> bool {
    (error.is_retryable() && error.kind() != ErrorKind::Timeout) || error.kind() == ErrorKind::Lost
}

/// Something between moves requests from one session to another; the store `instead` bears that.
pub(super) fn moved(instead: &str) -> Error {
    let text = "behind a proxy or pooler that moves requests between sessions there are no session locks; use a direct connection";
    Error::new(ErrorKind::Unsupported, format!("{text}, or {instead}://"))
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
