//! How a lock is taken: asked for, waited for in the server's queue, and believed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onelock_core::{Busy, Error, ErrorKind, Grant, Mode, Request, Result, Standing};
use tokio::time::Instant;

use super::asked;
use super::dialect::{Answer, Ask, Dialect, Session, Whom, Wish};
use super::hold::{Hold, Line, gone, silent};
use super::names::{Key, Tag};
use super::queue::{self, Of, Place, Waited, patiently};
use super::shared::{Shared, broke};
use super::turns::{Permit, Turn};

/// How long a call waits in the server's queue before it asks whether the server is there at all.
const PATIENCE: Duration = Duration::from_secs(3);

/// How soon a server that takes no more connections is asked for one again.
const AGAIN: Duration = Duration::from_secs(1);

/// What a call finds when its turn has come.
enum Come<C> {
    /// Who gave back another lock has asked for this one.
    Answered(Standing),
    /// It may ask: by this session, or by any.
    ToAsk(Permit<C>, Option<Session<C>>),
}

/// What comes back from a session, if it does.
type Reply<D> = Waited<asked::Reply<<D as Dialect>::Conn>>;

impl<D: Dialect> Shared<D> {
    pub(super) async fn acquire(self: &Arc<Self>, request: &Request) -> Result<Standing> {
        self.check_open()?;
        if let Some(hold) = self.find(&request.name, request.holder)
            && let Some(grant) = Box::pin(self.renew(request.holder, &hold, request.lease)).await?
        {
            return Ok(Standing::Held(grant));
        }
        let of = queue::of(&request.name, request.mode);
        if request.queue
            && let Some(place) = self.places.take(&of, None)
        {
            return Box::pin(self.go_on(request, place)).await;
        }
        self.join(request, of).await
    }

    /// Waits on where an earlier call has left off.
    async fn go_on(self: &Arc<Self>, request: &Request, place: Place<D::Conn>) -> Result<Standing> {
        let (place, waited) = self.wait(request, place).await;
        match waited {
            Waited::Answered((session, answer)) => self.taken_earlier(request, place, session, answer).await,
            Waited::Late => self.confirm(request, place).await,
            Waited::Deserted => Ok(self.keep(place)),
        }
    }

    /// Waits until it may ask. Whoever gave a lock back meanwhile may have asked for it.
    async fn turn(self: &Arc<Self>, request: &Request, wish: &Wish) -> Result<Come<D::Conn>> {
        let swaps = request.mode == Mode::Exclusive && self.dialect.swaps();
        let mut wished = swaps.then_some((wish, request.lease));
        loop {
            let (permit, session, answer) = match self.turns.turn(wished.take(), self.limit()).await? {
                Turn::Permit(permit) => return Ok(Come::ToAsk(permit, None)),
                Turn::Swapped { permit, session, taken: None } if request.queue => {
                    return Ok(Come::ToAsk(permit, Some(session)));
                }
                Turn::Swapped { permit, session, taken } => {
                    (permit, session, taken.map_or(Answer::No, Answer::Taken))
                }
                Turn::Unclear(id, error) => {
                    // Else what it may hold would be waited for.
                    if Box::pin(self.end(Whom::Session(id))).await.is_err() {
                        // Only after an unclear error somebody comes to give it back.
                        if error.is_unclear() {
                            self.lost().insert(request.holder, id);
                        }
                        return Err(error);
                    }
                    continue;
                }
            };
            return self.taken(request, (wish.key, permit), session, Ok(answer)).map(Come::Answered);
        }
    }

    /// Asks for the lock.
    async fn join(self: &Arc<Self>, request: &Request, of: Of) -> Result<Standing> {
        let wish = Wish {
            key: self.key(&request.name),
            mode: request.mode,
            tag: Tag::of(request.holder),
            note: request.note.clone(),
        };
        let (mut permit, mut swapped) = match self.turn(request, &wish).await? {
            Come::Answered(standing) => return Ok(standing),
            Come::ToAsk(permit, session) => (permit, session),
        };
        loop {
            let (session, fresh) = match swapped.take().or_else(|| self.spares.take()) {
                Some(session) => (session, false),
                // Not told apart from a request that was sent: giving back what was never asked for does no harm.
                None => Box::pin(self.one_more()).await?,
            };
            let ask = Ask::Take {
                wish: wish.clone(),
                wait: request.queue,
                idle: (session.idle != request.lease).then_some(request.lease),
            };
            let id = session.id;
            let asked = asked::ask(&self.dialect, session, ask);
            let place = Place { of: of.clone(), id, key: wish.key, asked, permit };
            let (place, waited) = self.wait(request, place).await;
            match waited {
                Waited::Answered((session, Err(error))) if broke(&error) && !fresh => {
                    // It broke while it was a spare, and the others with it.
                    drop(session);
                    self.spares.clear();
                    // In case the server does not know yet: else the next one would wait for it.
                    let ended = error.kind() == ErrorKind::Lost;
                    if !ended && Box::pin(self.end(Whom::Session(id))).await.is_err() {
                        self.lost().insert(request.holder, id);
                        return Err(error);
                    }
                    permit = place.permit;
                }
                Waited::Answered((session, answer)) => {
                    return self.taken(request, (place.key, place.permit), session, answer);
                }
                Waited::Late => return Box::pin(self.confirm(request, place)).await,
                Waited::Deserted => return Ok(self.keep(place)),
            }
        }
    }

    /// A new session, or where the server takes no more connections the next one that another lock gives back; and whether it
    /// is new.
    async fn one_more(&self) -> Result<(Session<D::Conn>, bool)> {
        let end = Instant::now() + self.limit();
        loop {
            let given = self.spares.given.notified();
            if let Some(session) = self.spares.take() {
                return Ok((session, false));
            }
            match self.dialect.connect().await {
                Ok(session) => return Ok((session, true)),
                Err(error) if D::is_full(&error) => {
                    // Other clients give back connections of the server, too.
                    let again = end.min(Instant::now() + AGAIN);
                    if tokio::time::timeout_at(again, given).await.is_err() && again == end {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the answer: as long as the lease has time enough left afterwards.
    async fn wait(&self, request: &Request, mut place: Place<D::Conn>) -> (Place<D::Conn>, Reply<D>) {
        let limit = if request.queue { PATIENCE.min(request.lease / 4) } else { self.limit() };
        let waited = patiently(&mut place.asked, limit, request.queue).await;
        (place, waited)
    }

    /// The answer to `Take`.
    fn taken(
        &self,
        request: &Request,
        (key, permit): (Key, Permit<D::Conn>),
        session: Session<D::Conn>,
        answer: Result<Answer>,
    ) -> Result<Standing> {
        let id = session.id;
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
                    self.lost().insert(request.holder, id);
                }
                return Err(error);
            }
        };
        let hold = Arc::new(Hold {
            name: request.name.clone(),
            key,
            mode: request.mode,
            token,
            id,
            line: tokio::sync::Mutex::new(Line::Free(session)),
            permit: Mutex::new(Some(permit)),
        });
        self.held().insert(request.holder, hold);
        if let Err(closed) = self.check_open() {
            self.held().remove(&request.holder);
            return Err(closed);
        }
        Ok(Standing::Held(Grant { token, lease: request.lease }))
    }

    /// The same where the lock may have been granted before this call was made.
    async fn taken_earlier(
        &self,
        request: &Request,
        place: Place<D::Conn>,
        session: Session<D::Conn>,
        answer: Result<Answer>,
    ) -> Result<Standing> {
        let standing = self.taken(request, (place.key, place.permit), session, answer)?;
        let Standing::Held(_) = standing else { return Ok(standing) };
        let Some(hold) = self.find(&request.name, request.holder) else {
            self.check_open()?;
            return Err(gone());
        };
        // The server counts since it granted the lock, whenever that was; now it counts from here.
        let mut line = hold.line.lock().await;
        let beat = line.beat(&self.dialect, request.lease, true, self.limit()).await;
        drop(line);
        if let Err(error) = beat {
            self.held().remove(&request.holder);
            self.lost().insert(request.holder, hold.id);
            return Err(error);
        }
        Ok(standing)
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
            Ok(_) => match patiently(&mut place.asked, self.limit(), false).await {
                Waited::Answered((session, answer)) => {
                    self.taken_earlier(request, place, session, answer).await
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
}
