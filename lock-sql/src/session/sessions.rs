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

use super::dialect::{Ask, Dialect, Id, Whose, Wish};
use super::names::Key;
use crate::pool::{Connect, Fault, Pool};

/// How soon after the request to end a session the server is asked whether it has gone.
const SOON: Duration = Duration::from_micros(200);

/// One session of the server.
pub(super) struct Session<D: Dialect> {
    conn: D::Conn,
    pub(super) id: Id,
    /// How long the server lets it be idle.
    idle: Duration,
    /// When it has answered last: by then the server takes it for idle. A request that waits may take long.
    used: Instant,
}

/// The session of a lock, and the right to hold or to wait: it ends after the session was given back.
pub(super) type Permitted<D> = (Session<D>, OwnedSemaphorePermit);

impl<D: Dialect> Session<D> {
    pub(super) async fn ask(&mut self, dialect: &D, wish: &Wish, ask: Ask) -> Result<Option<i64>> {
        let idle = match ask {
            Ask::Take | Ask::Queue => wish.request.lease,
            // A renewal never shortens what an earlier one gave.
            Ask::Beat(lease) => lease.max(self.idle),
            Ask::Give => self.idle,
        };
        // Not every server says so when it ends a session for having been idle.
        let ended = self.used.elapsed() >= self.idle;
        let asked =
            dialect.ask(&mut self.conn, wish, ask, Some(idle).filter(|idle| *idle != self.idle)).await;
        let asked = asked.map_err(|error| if ended && error.is_unclear() { lost(error) } else { error });
        let (process, number) = asked?;
        // The lock belongs to the session: another one, by a proxy or pooler, is not ours.
        if process != self.id.process {
            return Err(moved::<D>());
        }
        self.idle = idle;
        self.used = Instant::now();
        Ok(number)
    }
}

pub(super) struct Sessions<D: Dialect> {
    pub(super) pool: Pool<Maker<D>>,
    /// How long the server may take to answer.
    pub(super) limit: Duration,
    /// The session that looks and ends others, also when the server takes no more connections.
    side: Mutex<Option<Session<D>>>,
    /// How many of its requests were answered.
    answers: AtomicUsize,
}

/// Makes sessions.
pub(super) struct Maker<D> {
    pub(super) dialect: Arc<D>,
    runtime: Handle,
    limit: Duration,
}

impl<D: Dialect> Connect for Maker<D> {
    type Conn = Session<D>;

    /// On the runtime of the store, whose end ends its connections.
    async fn connect(&self) -> Result<Session<D>> {
        let (dialect, limit) = (Arc::clone(&self.dialect), self.limit);
        let connecting = self.runtime.spawn(async move { timeout(limit, dialect.connect()).await });
        let late = |_| Err(Error::new(ErrorKind::Unavailable, "the server did not set up a session in time"));
        let (conn, id) = connecting.await.map_err(|_| closed())?.unwrap_or_else(late)?;
        Ok(Session { conn, id, idle: Duration::MAX, used: Instant::now() })
    }

    fn fault(error: &sqlx::Error) -> Fault {
        D::FAULT(error)
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

    /// A session for one lock, and whether it was used before. While all hold or wait, or the server takes no more connections, the
    /// next one that is given back.
    pub(super) async fn get(&self) -> Result<(Permitted<D>, bool)> {
        let permit = timeout(self.limit, Arc::clone(&self.pool.permits).acquire_owned()).await;
        let permit = permit.map_err(|_| full())?.map_err(|_| closed())?;
        // What fails is not distinguished from a request that was sent: giving back what was never asked for does no harm.
        let (session, used) = self.pool.conn(Instant::now() + self.limit).await?;
        Ok(((session, permit), used))
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
            // While those ahead are answered it waits on. When for so long none was, it need not find out by itself.
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
        self.aside(move |dialect, conn| dialect.waiting(conn, some.clone())).await
    }

    /// Ends a session, which holds nothing any more when this is answered, if it was there.
    pub(super) async fn end(self: &Arc<Self>, whose: Whose) -> Result<Release> {
        let (begun, mut ended, mut pause) = (Instant::now(), Release::NotHeld, SOON);
        loop {
            let whose = whose.clone();
            if !self.aside(move |dialect, conn| dialect.end(conn, whose.clone())).await? {
                return Ok(ended);
            }
            if begun.elapsed() > self.limit {
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

/// Something between moves requests from one session to another; the store over tables can work so.
pub(super) fn moved<D: Dialect>() -> Error {
    let text = "behind a proxy or pooler that moves requests between sessions there are no session locks; use a direct connection";
    let tables = D::SCHEME.trim_end_matches("+session");
    Error::new(ErrorKind::Unsupported, format!("{text}, or {tables}://"))
}

/// The server has ended the session, by somebody's order or for having been idle.
pub(super) fn lost(cause: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Lost, "the server has ended the session").caused_by(cause)
}

pub(super) fn silent() -> Error {
    Error::new(ErrorKind::Timeout, "the server did not answer in time")
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store of session locks was closed")
}
