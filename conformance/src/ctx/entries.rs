//! Entries at the level of verbs: what a case asks a store for, and what it must be told.

use std::sync::Arc;
use std::time::Duration;

use onelock_core::{
    Backend, FencingToken, Grant, HolderId, ListedName, LockName, Mode, Page, Place, Release, Renewal,
    Renewed, Request, Standing, Ticket,
};

use super::LONG;
use crate::verdict::{Stop, Verdict};
use crate::{ensure, ensure_eq};

/// A checked name.
///
/// # Errors
/// When it is none.
pub fn name(text: &str) -> Verdict<LockName> {
    Ok(LockName::new(text)?)
}

/// A permit of a semaphore with `limit` permits.
///
/// # Errors
/// For a limit of 0.
pub fn permit(limit: u32) -> Verdict<Mode> {
    Ok(Mode::permit(limit)?)
}

/// A request with a fresh holder id that waits in the line on long leases.
///
/// # Errors
/// When the operating system has no random numbers.
pub fn request(name: &LockName, mode: Mode) -> Verdict<Request> {
    Ok(Request::new(name.clone(), HolderId::random()?, mode, LONG))
}

/// An exclusive request.
///
/// # Errors
/// As [`request`].
pub fn exclusive(name: &LockName) -> Verdict<Request> {
    request(name, Mode::Exclusive)
}

/// The same request with leases of `lease`.
pub fn leased(request: Request, lease: Duration) -> Request {
    request.lease(lease).waiter_lease(lease)
}

/// The same request, not to wait in the line.
pub fn trying(request: Request) -> Request {
    request.queue(false)
}

/// The renewal of an entry on the leases of its request.
#[must_use]
pub fn renewal(request: &Request, token: impl Into<Option<FencingToken>>) -> Renewal {
    Renewal::new(ticket(request, token), request.lease, request.waiter_lease)
}

/// The ticket of an entry; without a number while that is not known.
pub fn ticket(request: &Request, token: impl Into<Option<FencingToken>>) -> Ticket {
    request.ticket().token(token.into())
}

/// An entry of a line, by the client that asked for it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The client.
    pub backend: Arc<dyn Backend>,
    /// What it asked for.
    pub request: Request,
    /// The entry's number; `None` while that is not known.
    pub token: Option<FencingToken>,
}

impl Entry {
    /// Joins the line and must hold.
    ///
    /// # Errors
    /// When it does not.
    pub async fn holding(backend: &Arc<dyn Backend>, request: Request) -> Verdict<Self> {
        let token = Some(held(backend, &request).await?.token);
        Ok(Self { backend: Arc::clone(backend), request, token })
    }

    /// Joins the line and must wait.
    ///
    /// # Errors
    /// When it does not.
    pub async fn waiting(backend: &Arc<dyn Backend>, request: Request) -> Verdict<Self> {
        let token = waiting(backend, &request).await?.token;
        Ok(Self { backend: Arc::clone(backend), request, token })
    }

    /// Its ticket.
    pub fn ticket(&self) -> Ticket {
        ticket(&self.request, self.token)
    }

    /// Renews it.
    ///
    /// # Errors
    /// What the store says.
    pub async fn renew(&self) -> Verdict<Renewed> {
        renew(&self.backend, renewal(&self.request, self.token)).await
    }

    /// Renews it; whether it holds.
    ///
    /// # Errors
    /// What the store says.
    pub async fn holds(&self) -> Verdict<bool> {
        Ok(matches!(self.renew().await?, Renewed::Held(_)))
    }

    /// Releases it.
    ///
    /// # Errors
    /// What the store says.
    pub async fn release(&self) -> Verdict<Release> {
        Ok(self.backend.release(&self.ticket()).await?)
    }
}

/// Joins the line and must hold.
///
/// # Errors
/// When it does not.
pub async fn held(backend: &Arc<dyn Backend>, request: &Request) -> Verdict<Grant> {
    match backend.acquire(request).await? {
        Standing::Held(grant) => Ok(grant),
        other => Err(Stop::failed(format!("{:?} must hold, got {other:?}", request.name))),
    }
}

/// Takes and gives back once; the number.
///
/// # Errors
/// When the lock is not free, or not given back.
pub async fn cycle(backend: &Arc<dyn Backend>, name: &LockName) -> Verdict<FencingToken> {
    let request = exclusive(name)?;
    let token = held(backend, &request).await?.token;
    ensure_eq!(backend.release(&ticket(&request, token)).await?, Release::Released, "the release");
    Ok(token)
}

/// Joins the line and must wait.
///
/// # Errors
/// When it does not.
pub async fn waiting(backend: &Arc<dyn Backend>, request: &Request) -> Verdict<Place> {
    match backend.acquire(request).await? {
        Standing::Waiting(place) => Ok(place),
        other => Err(Stop::failed(format!("{:?} must wait, got {other:?}", request.name))),
    }
}

/// Whether an entry that has joined the line holds, and its number.
///
/// # Errors
/// When it has not joined; or when the store gives no number before it holds.
pub fn joined(standing: Standing) -> Verdict<(bool, FencingToken)> {
    match standing {
        Standing::Held(grant) => Ok((true, grant.token)),
        Standing::Waiting(place) => Ok((false, number(place)?)),
        Standing::Busy(busy) => Err(Stop::failed(format!("a queued request got {busy:?}"))),
    }
}

/// The number of the first holder that the store shows.
///
/// # Errors
/// What the store says.
pub async fn holder(backend: &Arc<dyn Backend>, name: &LockName) -> Verdict<Option<FencingToken>> {
    Ok(backend.inspect(name).await?.holders.first().map(|holder| holder.token))
}

/// The number of an entry that waits.
///
/// # Errors
/// When the store gives none before it holds.
pub fn number(place: Place) -> Verdict<FencingToken> {
    place.token.ok_or_else(|| Stop::failed(format!("an entry that waits has no number: {place:?}")))
}

/// Renews one entry.
///
/// # Errors
/// What the store says.
pub async fn renew(backend: &Arc<dyn Backend>, due: Renewal) -> Verdict<Renewed> {
    match &backend.renew(&[due]).await[..] {
        [Ok(answer)] => Ok(*answer),
        [Err(error)] => Err(error.clone().into()),
        other => Err(Stop::failed(format!("{} answers to one renewal", other.len()))),
    }
}

/// All names in use that start with `prefix`, in pages of at most `limit`.
///
/// # Errors
/// What the store says; or that a page is too long, or none is the last.
pub async fn listed(backend: &Arc<dyn Backend>, prefix: &str, limit: usize) -> Verdict<Vec<ListedName>> {
    let (mut page, mut all) = (Page::first(limit)?, Vec::new());
    for _ in 0..10_000 {
        let listing = backend.list(prefix, &page).await?;
        ensure!(listing.names.len() <= limit, "{} names on a page of {limit}", listing.names.len());
        all.extend(listing.names);
        match listing.next {
            Some(cursor) => page = page.after(cursor),
            None => return Ok(all),
        }
    }
    Err(Stop::failed("a listing without an end"))
}
