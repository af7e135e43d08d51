//! The wrong ways of a store, each around the memory store, which does the rest right.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use onelock_conformance::harness::Harness;
use onelock_conformance::harness::memory::Memory;
use onelock_core::{
    Backend, Busy, Capabilities, FencingToken, Grant, HolderId, Info, Listing, LockName, Mode, Note, Page,
    Raise, Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use tokio::sync::Notify;

use super::faults::Fault;

/// What the clients of a mutant share.
#[derive(Debug, Default)]
struct Shared {
    released: Notify,
    /// What is subtracted from the numbers of a name.
    bases: Mutex<HashMap<LockName, i64>>,
    /// The first number of each holder.
    numbers: Mutex<HashMap<HolderId, FencingToken>>,
    /// The requests that wait, by name.
    waiting: Mutex<HashMap<LockName, Vec<Request>>>,
    /// The namespace of the first client.
    first: OnceLock<Arc<dyn Backend>>,
}

#[derive(Debug)]
struct Mutant {
    inner: Arc<dyn Backend>,
    fault: Fault,
    shared: Arc<Shared>,
    /// How many numbers this client has seen.
    own: Mutex<i64>,
}

fn token(value: i64) -> FencingToken {
    FencingToken::new(value.max(1)).unwrap()
}

impl Mutant {
    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn name(&self, name: &LockName) -> LockName {
        match self.fault {
            Fault::NamesFolded => {
                LockName::new(name.as_str().to_lowercase()).unwrap_or_else(|_| name.clone())
            }
            Fault::NamesCut => LockName::new(name.as_str().chars().take(12).collect::<String>()).unwrap(),
            _ => name.clone(),
        }
    }

    fn mode(&self, mode: Mode) -> Mode {
        match (self.fault, mode) {
            (Fault::NoSharing, Mode::Shared) => Mode::Exclusive,
            (Fault::PermitsNotCounted, Mode::Permit { .. }) => Mode::permit(1000).unwrap(),
            (Fault::PermitsNotWeighed, Mode::Permit { limit, .. }) => Mode::permit(limit.get()).unwrap(),
            (Fault::LimitsNotCompared, Mode::Permit { weight, .. }) => {
                Mode::permit(5).unwrap().weighing(weight.get().min(5)).unwrap()
            }
            _ => mode,
        }
    }

    fn ticket(&self, ticket: &Ticket) -> Ticket {
        let (name, mode) = (self.name(&ticket.name), self.mode(ticket.mode));
        Ticket::new(name, ticket.holder, mode).delay(ticket.delay).token(ticket.token)
    }

    /// The number as this mutant tells it.
    fn number(&self, name: &LockName, holder: HolderId, raw: FencingToken) -> FencingToken {
        match self.fault {
            Fault::TokensStartAgain => {
                let base = *self.shared.bases.lock().unwrap().get(name).unwrap_or(&0);
                token(raw.get() - base)
            }
            Fault::TokensOfTheClient => {
                let mut own = self.own.lock().unwrap();
                *own += 1;
                token(*own)
            }
            Fault::TokensOfTheClock => {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
                token(i64::try_from(now.as_millis()).unwrap())
            }
            Fault::OldNumberAfterExpiry => *self.shared.numbers.lock().unwrap().entry(holder).or_insert(raw),
            _ => raw,
        }
    }

    async fn evict_first(&self, name: &LockName) -> Result<Release> {
        match self.inner.inspect(name).await?.holders.first() {
            Some(holder) => self.inner.evict(name, holder.token).await,
            None => Ok(Release::NotHeld),
        }
    }

    /// Takes the waiters out of the line and puts them back behind `last`.
    async fn to_the_front(&self, last: &Request, place: Standing) -> Result<Standing> {
        let others = {
            let mut waiting = self.shared.waiting.lock().unwrap();
            let line = waiting.entry(last.name.clone()).or_default();
            let others = line.clone();
            line.push(last.clone());
            others
        };
        for other in others {
            if self.inner.release(&other.ticket()).await? == Release::Released {
                self.inner.acquire(&other).await?;
            }
        }
        Ok(place)
    }

    /// The number next ahead of this one.
    async fn ahead(&self, name: &LockName, own: FencingToken) -> Result<Option<FencingToken>> {
        let line = self.inner.inspect(name).await?;
        let numbers = line.holders.iter().chain(&line.waiters).map(|entry| entry.token);
        Ok(numbers.filter(|number| *number < own).max())
    }

    /// Ends the entry when this time is over.
    fn end_after(&self, lease: Duration, due: &Renewal) {
        let (inner, ticket) = (Arc::clone(&self.inner), due.ticket.clone());
        tokio::spawn(async move {
            tokio::time::sleep(lease).await;
            inner.release(&ticket).await
        });
    }

    async fn renew_one(&self, due: &Renewal) -> Result<Renewed> {
        let lease = if self.has(Fault::RenewTooShort) { due.lease / 2 } else { due.lease };
        let due = Renewal::new(self.ticket(&due.ticket), lease, due.waiter_lease);
        let answer = self.inner.renew(std::slice::from_ref(&due)).await.remove(0)?;
        match (self.fault, answer) {
            (Fault::RenewWithoutOwnerCheck, Renewed::NotHeld) => {
                let line = self.inner.inspect(&due.ticket.name).await?;
                let holder = line.holders.first();
                Ok(holder.map_or(Renewed::NotHeld, |h| Renewed::Held(Grant::new(h.token, due.lease))))
            }
            (Fault::RenewRecreates, Renewed::NotHeld) => match self.inner.acquire(&request_of(&due)).await? {
                Standing::Held(grant) => Ok(Renewed::Held(grant)),
                Standing::Waiting(place) => Ok(Renewed::Waiting(place)),
                Standing::Busy(_) => Ok(Renewed::NotHeld),
            },
            (Fault::RenewShortens, Renewed::Held(grant)) if due.lease < Duration::from_secs(60) => {
                // The same entry on a shorter lease: out and in again, under the old number for this answer.
                self.inner.release(&due.ticket).await?;
                self.inner.acquire(&request_of(&due)).await?;
                Ok(Renewed::Held(grant))
            }
            (Fault::RenewShortensWaiters, Renewed::Waiting(_)) => {
                self.end_after(due.waiter_lease, &due);
                Ok(answer)
            }
            (Fault::RenewForgetsTheDelay, Renewed::Held(_)) if !due.ticket.delay.is_zero() => {
                self.end_after(due.lease, &due);
                Ok(answer)
            }
            (Fault::RenewTooShort, Renewed::Held(grant)) => {
                Ok(Renewed::Held(Grant::new(grant.token, grant.lease * 2)))
            }
            (_, Renewed::Held(grant)) => {
                let number = self.number(&due.ticket.name, due.ticket.holder, grant.token);
                Ok(Renewed::Held(Grant::new(number, grant.lease)))
            }
            (_, answer) => Ok(answer),
        }
    }
}

fn request_of(due: &Renewal) -> Request {
    Request::new(due.ticket.name.clone(), due.ticket.holder, due.ticket.mode, due.lease)
        .waiter_lease(due.waiter_lease)
        .delay(due.ticket.delay)
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Mutant {
    fn info(&self) -> Info {
        self.inner.info()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.durable |= self.has(Fault::DeclaresTooMuch);
        capabilities
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        let mut request = request.clone();
        (request.name, request.mode) = (self.name(&request.name), self.mode(request.mode));
        match self.fault {
            Fault::NoDelay => request.delay = Duration::ZERO,
            Fault::NoDelayOfWaiters if self.inner.inspect(&request.name).await?.is_held() => {
                request.delay = Duration::ZERO;
            }
            Fault::WaitersStay => request.waiter_lease = Duration::from_secs(3600),
            Fault::ShowsHolderIds => request.note = Note::new(request.holder.to_hex())?,
            Fault::TryJoins => request.queue = true,
            Fault::AskingAgainIsNew => {
                self.inner.release(&request.ticket()).await?;
            }
            Fault::LeaseTooShort => request.lease /= 2,
            Fault::TryPassesWaiters | Fault::ReadersPassWriters
                if request.mode == Mode::Shared
                    && (self.has(Fault::ReadersPassWriters) || !request.queue) =>
            {
                let line = self.inner.inspect(&request.name).await?;
                if line.holders.iter().any(|h| h.mode == Mode::Shared) && !line.waiters.is_empty() {
                    return Ok(Standing::Held(Grant::new(token(i64::MAX - 1), request.lease)));
                }
            }
            _ => {}
        }
        let standing = self.inner.acquire(&request).await?;
        Ok(match standing {
            Standing::Held(grant) => {
                let lease = if self.has(Fault::LeaseTooShort) { grant.lease * 2 } else { grant.lease };
                Standing::Held(Grant::new(self.number(&request.name, request.holder, grant.token), lease))
            }
            Standing::Waiting(_) if self.has(Fault::LastComeFirstServed) => {
                self.to_the_front(&request, standing).await?
            }
            Standing::Waiting(_) if self.has(Fault::TryJoins) => Standing::Busy(Busy::default()),
            Standing::Waiting(_) if self.has(Fault::TryForgetsTheWaiter) && !request.queue => {
                Standing::Busy(Busy::default())
            }
            other => other,
        })
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        let ticket = self.ticket(ticket);
        match self.fault {
            Fault::NoWake => std::future::pending().await,
            Fault::Herd => {
                let released = self.shared.released.notified();
                tokio::select! {
                    biased;
                    woken = self.inner.wait(&ticket) => woken,
                    () = released => Ok(Wake::Ask),
                }
            }
            Fault::EarlyWakeIsLost => {
                let due = Renewal::new(ticket.clone(), Duration::from_millis(10), Duration::from_millis(10));
                if let Ok(Renewed::Held(_)) = self.inner.renew(&[due]).await.remove(0) {
                    std::future::pending().await
                }
                self.inner.wait(&ticket).await
            }
            Fault::OnlyTheOneAheadCounts => {
                let Some(own) = ticket.token else { return self.inner.wait(&ticket).await };
                let ahead = self.ahead(&ticket.name, own).await?;
                while ahead.is_some() && self.ahead(&ticket.name, own).await? >= ahead {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Ok(Wake::Held(own))
            }
            _ => self.inner.wait(&ticket).await,
        }
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut answers: Vec<Result<Renewed>> = Vec::new();
        for one in due {
            let first = due.iter().position(|other| other.ticket.name == one.ticket.name);
            if let Some(first) = first.filter(|first| self.has(Fault::RenewByName) && *first < answers.len())
            {
                answers.push(answers[first].clone());
                continue;
            }
            let stopped =
                self.has(Fault::RenewStopsAtTheFirst) && matches!(answers.last(), Some(Ok(Renewed::NotHeld)));
            answers.push(match one.ticket.token {
                Some(token) if self.has(Fault::RenewSkipped) => {
                    Ok(Renewed::Held(Grant::new(token, one.lease)))
                }
                _ if stopped => Ok(Renewed::NotHeld),
                _ => self.renew_one(one).await,
            });
        }
        answers
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        let ticket = self.ticket(ticket);
        let released = match self.fault {
            Fault::ReleaseWithoutOwnerCheck => self.evict_first(&ticket.name).await?,
            Fault::ReleaseDoesNothing => Release::Released,
            _ => self.inner.release(&ticket).await?,
        };
        if self.has(Fault::TokensStartAgain) && self.inner.inspect(&ticket.name).await?.holders.is_empty() {
            // As if the row with the counter were deleted with the last entry.
            let probe = HolderId::random()?;
            let second = Duration::from_secs(1);
            let mut request = request_of(&Renewal::new(ticket.clone(), second, second));
            request.holder = probe;
            if let Standing::Held(grant) = self.inner.acquire(&request).await? {
                self.inner.release(&request.ticket()).await?;
                self.shared.bases.lock().unwrap().insert(ticket.name.clone(), grant.token.get());
            }
        }
        self.shared.released.notify_waiters();
        Ok(released)
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        let ticket = self.ticket(ticket);
        let line = self.inner.inspect(&ticket.name).await?;
        let there = line.holders.iter().any(|holder| Some(holder.token) == ticket.token);
        match self.fault {
            Fault::RaiseDoesNothing => Ok(Raise::Raised),
            Fault::RaiseByAnybody | Fault::RaiseWithoutOwnerCheck
                if there || !self.has(Fault::RaiseByAnybody) =>
            {
                let second = Duration::from_secs(1);
                let mut other = request_of(&Renewal::new(ticket, second, second));
                (other.name, other.holder) = (LockName::new("raise")?, HolderId::random()?);
                self.inner.acquire(&other).await?;
                let raised = self.inner.raise(&other.ticket(), token).await;
                self.inner.release(&other.ticket()).await?;
                raised
            }
            _ => self.inner.raise(&ticket, token).await,
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let mut shown = self.inner.inspect(&self.name(name)).await?;
        shown.name.clone_from(name);
        Ok(shown)
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.inner.list(if self.has(Fault::ListsEverything) { "" } else { prefix }, page).await
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let name = self.name(name);
        if self.has(Fault::EvictAnything) {
            return self.evict_first(&name).await;
        }
        self.inner.evict(&name, token).await
    }

    async fn close(&self) -> Result<()> {
        if self.has(Fault::CloseDoesNothing) {
            return Ok(());
        }
        self.inner.close().await
    }
}

/// The memory store with this fault.
pub(crate) fn harness(fault: Fault) -> Arc<dyn Harness> {
    let shared = Arc::new(Shared::default());
    Arc::new(Memory::wrapped("mutant", move |mut inner| {
        if fault == Fault::OneNamespace {
            inner = Arc::clone(shared.first.get_or_init(|| inner));
        }
        Arc::new(Mutant { inner, fault, shared: Arc::clone(&shared), own: Mutex::new(0) })
    }))
}
