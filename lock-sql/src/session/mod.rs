//! Session locks: the server's own advisory locks, a connection for each lock that is held or waited for.
//!
//! They are fast because nothing is written down, and for the same reason they promise less than the lines of the other
//! stores; the crate's README says what. This part is the same for every server; a [`Dialect`] knows how to ask one.
//!
//! - The lock belongs to a session of the server. The server ends a session that is idle for longer than the lease, and
//!   renewals keep it from being so: that is the lease. It starts anew when the server has answered a request, so a client
//!   that counts from before it sent that request never believes for longer.
//! - The number is drawn in the request that takes the lock, after it was taken. Whoever holds the lock next draws later,
//!   from the same source, which never goes back: numbers of a name grow.
//! - Whatever goes wrong on a connection, it is closed, never used again: no session that may hold something is lent out.

mod dialect;
mod hold;
#[cfg(feature = "mysql")]
pub mod mysql;
mod names;
#[cfg(feature = "postgres")]
pub mod postgres;
mod queue;
mod spares;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    Backend, Busy, Capabilities, EntryView, Error, ErrorKind, FencingToken, Grant, HolderId, Info, Listing,
    LockName, Page, Raise, Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

use dialect::{Answer, Ask, Dialect, Id, Session, Whom};
use hold::{Hold, Line, send, silent};
use names::{Key, plain, tag};
use queue::{Of, Place, Places, Waited, patiently};
use spares::{Spares, Stale};

/// How long a call waits in the server's queue before it asks whether the server is there at all.
const PATIENCE: Duration = Duration::from_secs(3);

/// What every kind of session lock can do; the rest is for the dialect to say.
pub(crate) const CAPABILITIES: Capabilities = {
    let mut caps = Capabilities::full();
    // The server has a queue and keeps its order, but a waiter has no number and no lease in it.
    caps.fifo = false;
    caps.push = false;
    caps.permits = false;
    caps.raise = false;
    // A session that ends frees its lock at once.
    caps.delay = false;
    // A key cannot be read back into a name.
    caps.list = false;
    // A lock ends with the server's process, and with its client's connection. Numbers survive.
    caps.durable = false;
    caps.resume = false;
    // A session that is ended takes its connection with it: not for a client that was late by a moment.
    caps.min_lease = Duration::from_millis(200);
    caps
};

/// What a store of session locks is opened with.
struct Setup {
    info: Info,
    capabilities: Capabilities,
    /// What keeps the names of several users of one server apart.
    space: String,
    connections: u16,
    request_timeout: Duration,
}

/// The store, over one dialect.
struct SessionStore<D: Dialect> {
    shared: Arc<Shared<D>>,
    tend: JoinHandle<()>,
}

struct Shared<D: Dialect> {
    setup: Setup,
    dialect: Arc<D>,
    /// One permit for each session that holds or waits.
    permits: Arc<Semaphore>,
    spares: Spares<D::Conn>,
    held: Mutex<HashMap<HolderId, Arc<Hold<D::Conn>>>>,
    /// Sessions whose connection was given up while they might have held something for this holder.
    lost: Mutex<HashMap<HolderId, Id>>,
    places: Places<D::Conn>,
    /// The session that looks and ends others.
    side: tokio::sync::Mutex<Option<Session<D::Conn>>>,
    closed: AtomicBool,
}

impl<D: Dialect> SessionStore<D> {
    /// Takes in the sessions that opening has made: one for locks, and one to look.
    fn new(setup: Setup, dialect: D, first: Session<D::Conn>, side: Session<D::Conn>) -> Self {
        let shared = Arc::new(Shared {
            permits: Arc::new(Semaphore::new(setup.connections.into())),
            setup,
            dialect: Arc::new(dialect),
            spares: Spares::default(),
            held: Mutex::default(),
            lost: Mutex::default(),
            places: Places::default(),
            side: tokio::sync::Mutex::new(Some(side)),
            closed: AtomicBool::new(false),
        });
        shared.spares.give(first);
        let tend = tokio::spawn(tend(Arc::clone(&shared)));
        Self { shared, tend }
    }

    fn named<T>(&self, operation: &'static str, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.during(operation).at(&self.shared.setup.info.address))
    }

    fn unsupported<T>(&self, operation: &'static str, what: &str) -> Result<T> {
        let text = format!("{} has no {what}; `onelock stores` shows which stores do", D::SCHEME);
        self.named(operation, Err(Error::new(ErrorKind::Unsupported, text)))
    }
}

/// Keeps a few sessions for the next lock, and closes the rest.
async fn tend<D: Dialect>(shared: Arc<Shared<D>>) {
    loop {
        shared.spares.more.notified().await;
        loop {
            let (stale, next) = shared.spares.stale();
            for stale in stale {
                let Stale::Settle(session) = stale else { continue };
                let settle = send(&shared.dialect, session, Ask::Beat { idle: Some(Duration::ZERO) });
                if let Ok((session, Ok(_))) = tokio::time::timeout(shared.setup.request_timeout, settle).await
                {
                    shared.spares.give(session);
                }
            }
            let Some(next) = next else { break };
            tokio::time::sleep(next).await;
        }
    }
}

impl<D: Dialect> Shared<D> {
    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the store of session locks was closed"));
        }
        Ok(())
    }

    fn held(&self) -> MutexGuard<'_, HashMap<HolderId, Arc<Hold<D::Conn>>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, name: &LockName, holder: HolderId) -> Option<Arc<Hold<D::Conn>>> {
        self.held().get(&holder).filter(|hold| hold.name == *name).cloned()
    }

    fn lost(&self) -> MutexGuard<'_, HashMap<HolderId, Id>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, name: &LockName) -> Key {
        Key::new(&self.setup.space, name)
    }

    fn limit(&self) -> Duration {
        self.setup.request_timeout
    }

    /// The right to one more session that holds or waits.
    async fn permit(&self) -> Result<OwnedSemaphorePermit> {
        let full = || {
            let text = format!(
                "all {} connections of this client hold or await a lock, each lock has one of its own; raise \
                 `connections`",
                self.setup.connections
            );
            Error::new(ErrorKind::Full, text).unsent()
        };
        let permit = tokio::time::timeout(self.limit(), Arc::clone(&self.permits).acquire_owned()).await;
        let permit = permit.map_err(|_| full())?;
        permit.map_err(|_| Error::new(ErrorKind::Closed, "the store of session locks was closed"))
    }

    /// Asks by the session that is nobody's.
    async fn aside(&self, ask: Ask) -> Result<Answer> {
        let mut side = self.side.lock().await;
        loop {
            let kept = side.take();
            let fresh = kept.is_none();
            let session = match kept {
                Some(session) => session,
                None => self.dialect.connect().await.map_err(Error::unsent)?,
            };
            let asked = send(&self.dialect, session, ask.clone());
            let Ok((session, answer)) = tokio::time::timeout(self.limit(), asked).await else {
                return Err(silent());
            };
            match answer {
                Ok(answer) => {
                    *side = Some(session);
                    return Ok(answer);
                }
                // It broke while it was idle. Asking twice is asking once: what was ended stays ended.
                Err(error) if broke(&error) && !fresh => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends a session whose connection was given up; whether it was there yet.
    async fn end(&self, whom: Whom) -> Result<Release> {
        Ok(match self.aside(Ask::End(whom)).await? {
            Answer::Yes => Release::Released,
            _ => Release::NotHeld,
        })
    }

    async fn acquire(self: &Arc<Self>, request: &Request) -> Result<Standing> {
        self.check_open()?;
        if let Some(hold) = self.find(&request.name, request.holder)
            && let Some(grant) = self.renew(request.holder, &hold, request.lease).await?
        {
            return Ok(Standing::Held(grant));
        }
        let of = queue::of(&request.name, request.mode);
        if request.queue
            && let Some(place) = self.places.take(&of, None)
        {
            let (place, waited) = self.wait(request, place).await;
            return match waited {
                Waited::Answered((session, answer)) => {
                    self.taken(request, place, session, answer, true).await
                }
                Waited::Late => self.confirm(request, place).await,
                Waited::Deserted => Ok(self.keep(place)),
            };
        }
        self.join(request, of).await
    }

    /// Asks for the lock.
    async fn join(self: &Arc<Self>, request: &Request, of: Of) -> Result<Standing> {
        let key = self.key(&request.name);
        let mut permit = self.permit().await?;
        loop {
            let spare = self.spares.take();
            let fresh = spare.is_none();
            let session = match spare {
                Some(session) => session,
                // Not told apart from a request that was sent: giving back what was never asked for does no harm.
                None => self.dialect.connect().await?,
            };
            let ask = Ask::Take {
                key,
                mode: request.mode,
                wait: request.queue,
                tag: tag(request.holder),
                note: plain(request.note.as_str()),
                idle: (session.idle != request.lease).then_some(request.lease),
            };
            let id = session.id;
            let pending = send(&self.dialect, session, ask);
            let place = Place { of: of.clone(), id, key, pending, permit };
            let (place, waited) = self.wait(request, place).await;
            match waited {
                Waited::Answered((session, Err(error))) if broke(&error) && !fresh => {
                    // It broke while it was a spare, and the others with it.
                    drop(session);
                    self.spares.clear();
                    // In case the server does not know yet: else the next one would wait for it.
                    let ended = error.kind() == ErrorKind::Lost;
                    if !ended && self.end(Whom::Session(id)).await.is_err() {
                        self.lost().insert(request.holder, id);
                        return Err(error);
                    }
                    permit = place.permit;
                }
                Waited::Answered((session, answer)) => {
                    return self.taken(request, place, session, answer, false).await;
                }
                Waited::Late => return self.confirm(request, place).await,
                Waited::Deserted => return Ok(self.keep(place)),
            }
        }
    }

    /// Waits for the answer: as long as the lease has time enough left afterwards.
    async fn wait(&self, request: &Request, mut place: Place<D::Conn>) -> (Place<D::Conn>, Reply<D>) {
        let limit = if request.queue { PATIENCE.min(request.lease / 4) } else { self.limit() };
        let waited = patiently(&mut place.pending, limit, request.queue).await;
        (place, waited)
    }

    /// The answer to `Take`. `Earlier` says that the lock may have been granted before this call was made.
    async fn taken(
        self: &Arc<Self>,
        request: &Request,
        place: Place<D::Conn>,
        session: Session<D::Conn>,
        answer: Result<Answer>,
        earlier: bool,
    ) -> Result<Standing> {
        let token = match answer {
            Ok(Answer::Taken(token)) => token,
            Ok(_) => {
                self.spares.give(session);
                return Ok(Standing::Busy(Busy { retry_after: None }));
            }
            Err(error) => {
                drop(session);
                if error.kind() == ErrorKind::Lost {
                    // It took its place with it.
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        "the server has ended the waiting session",
                    ));
                }
                if error.is_unclear() {
                    self.lost().insert(request.holder, place.id);
                }
                return Err(error);
            }
        };
        let hold = Arc::new(Hold {
            name: request.name.clone(),
            key: place.key,
            mode: request.mode,
            token,
            id: place.id,
            line: tokio::sync::Mutex::new(Line::Free(session)),
            _permit: place.permit,
        });
        self.held().insert(request.holder, Arc::clone(&hold));
        if let Err(closed) = self.check_open() {
            self.held().remove(&request.holder);
            return Err(closed);
        }
        if earlier {
            // The server counts since it granted the lock, whenever that was; now it counts from here.
            let mut line = hold.line.lock().await;
            let beat = line.beat(&self.dialect, request.lease, true, self.limit()).await;
            drop(line);
            if let Err(error) = beat {
                self.held().remove(&request.holder);
                self.lost().insert(request.holder, hold.id);
                return Err(error);
            }
        }
        Ok(Standing::Held(Grant { token, lease: request.lease }))
    }

    /// No answer yet: the server may be busy with somebody else's hold, or not there at all.
    async fn confirm(self: &Arc<Self>, request: &Request, mut place: Place<D::Conn>) -> Result<Standing> {
        let give_up = |error| {
            self.lost().insert(request.holder, place.id);
            Err(error)
        };
        if !request.queue {
            return give_up(silent());
        }
        match self.aside(Ask::Waits(place.id)).await {
            Ok(Answer::Yes) => Ok(self.keep(place)),
            // Its turn has just come, or the session has ended: it says so at once.
            Ok(_) => match patiently(&mut place.pending, self.limit(), false).await {
                Waited::Answered((session, answer)) => {
                    self.taken(request, place, session, answer, true).await
                }
                _ => give_up(silent()),
            },
            Err(_) => give_up(silent()),
        }
    }

    /// Leaves the place in the queue for the next call.
    fn keep(self: &Arc<Self>, place: Place<D::Conn>) -> Standing {
        let (of, id) = (place.of.clone(), place.id);
        self.places.keep(place);
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(queue::KEPT).await;
            // Nobody has come: the server sees the connection go, and the place with it.
            weak.upgrade().and_then(|shared| shared.places.take(&of, Some(id)));
        });
        if self.closed.load(Ordering::Acquire) {
            self.places.clear();
        }
        Standing::Busy(Busy { retry_after: Some(Duration::ZERO) })
    }

    /// Renews; `None` when it is not held any more.
    async fn renew(
        &self,
        holder: HolderId,
        hold: &Arc<Hold<D::Conn>>,
        lease: Duration,
    ) -> Result<Option<Grant>> {
        let mut line = hold.line.lock().await;
        match line.beat(&self.dialect, lease, false, self.limit()).await {
            Ok(_) => Ok(Some(Grant { token: hold.token, lease })),
            // The answer may come yet; until then the deadline decides.
            Err(error) if error.kind() == ErrorKind::Timeout && line.is_stuck() => Err(error),
            Err(_) => {
                drop(line);
                self.forget(holder, hold);
                Ok(None)
            }
        }
    }

    fn forget(&self, holder: HolderId, hold: &Arc<Hold<D::Conn>>) {
        let mut held = self.held();
        if held.get(&holder).is_some_and(|other| Arc::ptr_eq(other, hold)) {
            held.remove(&holder);
        }
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.check_open()?;
        if let Some(hold) = self.find(&ticket.name, ticket.holder) {
            return self.give_back(ticket.holder, &hold).await;
        }
        let lost = self.lost().get(&ticket.holder).copied();
        if let Some(id) = lost {
            let ended = self.end(Whom::Session(id)).await?;
            self.lost().remove(&ticket.holder);
            return Ok(ended);
        }
        // Another client's, or nobody's.
        self.end(Whom::Tag(self.key(&ticket.name), tag(ticket.holder))).await
    }

    async fn give_back(&self, holder: HolderId, hold: &Arc<Hold<D::Conn>>) -> Result<Release> {
        let mut line = hold.line.lock().await;
        let late = line.is_stuck();
        match line.give(&self.dialect, (hold.key, hold.mode), self.limit()).await {
            Ok(answer) => {
                self.forget(holder, hold);
                let given = matches!(answer, Answer::Yes);
                if let Some(session) = line.take().filter(|_| given) {
                    self.spares.give(session);
                }
                Ok(if given { Release::Released } else { Release::NotHeld })
            }
            // The server says that it has ended the session: it was idle for too long, or evicted.
            Err(error) if error.kind() == ErrorKind::Lost => {
                self.forget(holder, hold);
                Ok(Release::NotHeld)
            }
            // One more call to be answered in.
            Err(error) if line.is_stuck() && !late => Err(error),
            Err(error) => {
                // The connection is gone, or of no use; the session may be there yet, and hold.
                line.take();
                self.forget(holder, hold);
                self.lost().insert(holder, hold.id);
                drop(line);
                // Whatever keeps this from being asked, the unlock before it may have been done.
                let Ok(ended) = self.end(Whom::Session(hold.id)).await else { return Err(error) };
                self.lost().remove(&holder);
                if ended == Release::NotHeld { Err(error) } else { Ok(ended) }
            }
        }
    }
}

/// Whether a session has come to its end, as the server or the connection says.
fn broke(error: &Error) -> bool {
    error.is_retryable() || error.kind() == ErrorKind::Lost
}

/// What comes back from a session, if it does.
type Reply<D> = Waited<(Session<<D as Dialect>::Conn>, Result<Answer>)>;

impl<D: Dialect> Drop for SessionStore<D> {
    fn drop(&mut self) {
        self.tend.abort();
    }
}

impl<D: Dialect> fmt::Debug for SessionStore<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionStore").field("info", &self.shared.setup.info).finish_non_exhaustive()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<D: Dialect> Backend for SessionStore<D> {
    fn info(&self) -> Info {
        self.shared.setup.info.clone()
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.setup.capabilities
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        let has = self.shared.setup.capabilities.check_mode(request.mode, D::SCHEME);
        self.named("acquire", has)?;
        self.named("acquire", self.shared.acquire(request).await)
    }

    /// Nobody waits here: an acquire does, in the server's queue.
    async fn wait(&self, _ticket: &Ticket) -> Result<Wake> {
        self.named("wait", self.shared.check_open())?;
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.named("wait", self.shared.check_open().map(|()| Wake::Ask))
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        // Each session for itself, all of them at once.
        let renewals = due.iter().map(async |renewal| {
            self.shared.check_open()?;
            let (name, holder) = (&renewal.ticket.name, renewal.ticket.holder);
            let Some(hold) = self.shared.find(name, holder) else { return Ok(Renewed::NotHeld) };
            let grant = self.shared.renew(holder, &hold, renewal.lease).await?;
            Ok(grant.map_or(Renewed::NotHeld, Renewed::Held))
        });
        let answers = futures_util::future::join_all(renewals).await;
        answers.into_iter().map(|answer| self.named("renew", answer)).collect()
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.named("release", self.shared.release(ticket).await)
    }

    async fn raise(&self, _ticket: &Ticket, _token: FencingToken) -> Result<Raise> {
        self.named("raise", self.shared.check_open())?;
        self.unsupported("raise", "`raise`: all locks share the source of their numbers")
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.named("inspect", self.shared.check_open())?;
        let seen = match self.named("inspect", self.shared.aside(Ask::Look(self.shared.key(name))).await)? {
            Answer::Holders(seen) => seen,
            _ => Vec::new(),
        };
        let view = |seen: dialect::Seen| EntryView {
            token: seen.token,
            mode: seen.mode,
            note: seen.note,
            age: None,
            expires_in: None,
        };
        let mut holders: Vec<_> = seen.into_iter().map(view).collect();
        holders.sort_by_key(|holder| holder.token);
        Ok(Snapshot { holders, ..Snapshot::empty(name.clone()) })
    }

    async fn list(&self, _prefix: &str, _page: &Page) -> Result<Listing> {
        self.named("list", self.shared.check_open())?;
        self.unsupported("list", "`list`: the server knows keys, not names")
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.named("evict", self.shared.check_open())?;
        let whom = Whom::Token(self.shared.key(name), token);
        let evicted = self.named("evict", self.shared.end(whom).await)?;
        if evicted == Release::Released {
            // Not every server tells a client that its session was ended by somebody's order.
            self.shared.held().retain(|_, hold| hold.name != *name || hold.token != token);
        }
        Ok(evicted)
    }

    async fn close(&self) -> Result<()> {
        let shared = &self.shared;
        shared.closed.store(true, Ordering::Release);
        shared.permits.close();
        // The server ends sessions whose connection has gone, and what they hold with them.
        shared.held().clear();
        shared.places.clear();
        shared.spares.clear();
        shared.side.lock().await.take();
        Ok(())
    }
}
