//! Known wrong ways to build a store, each around the memory store: the suite must name the fault of each.
// Helpers of tests, which may unwrap and panic as tests do.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lock_conformance::harness::Harness;
use lock_conformance::harness::memory::Memory;
use lock_conformance::{Stop, case, runner};
use lock_core::{
    Backend, Busy, Capabilities, FencingToken, Grant, HolderId, Info, Listing, LockName, Mode, Note, Page,
    Raise, Release, Renewal, Renewed, Request, Result, Snapshot, Standing, Ticket, Wake,
};
use tokio::sync::Notify;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// `release` frees the lock whoever holds it.
    ReleaseWithoutOwnerCheck,
    /// `release` says that it did and does nothing.
    ReleaseDoesNothing,
    /// `renew` answers for whoever holds.
    RenewWithoutOwnerCheck,
    /// `renew` puts an entry that is gone back.
    RenewRecreates,
    /// `renew` says yes without asking.
    RenewSkipped,
    /// `renew` gives up at the first entry that is gone.
    RenewStopsAtTheFirst,
    /// `renew` sets the lease, also to less.
    RenewShortens,
    /// Asking again gives a new entry.
    AskingAgainIsNew,
    /// Asking again after the lease has ended gives the old number.
    OldNumberAfterExpiry,
    /// Numbers start again when the line is empty.
    TokensStartAgain,
    /// Numbers go down.
    TokensOfTheClient,
    /// A try that is busy joins the line.
    TryJoins,
    /// A try looks at the holders only.
    TryPassesWaiters,
    /// Who joins goes to the front of the waiters.
    LastComeFirstServed,
    /// A reader is let in wherever readers hold.
    ReadersPassWriters,
    /// Shared entries are exclusive.
    NoSharing,
    /// Permits are not counted.
    PermitsNotCounted,
    /// A lease is shorter than what is said.
    LeaseTooShort,
    /// The lock-delay is forgotten.
    NoDelay,
    /// Waiters stay for ever.
    WaitersStay,
    /// A wait hears only what comes after it has begun.
    EarlyWakeIsLost,
    /// Everybody is woken by every release.
    Herd,
    /// Nobody is ever woken.
    NoWake,
    /// `evict` does not look at the number.
    EvictAnything,
    /// `inspect` shows holder ids.
    ShowsHolderIds,
    /// `list` does not look at the prefix.
    ListsEverything,
    /// Names are compared without case.
    NamesFolded,
    /// Names are cut.
    NamesCut,
    /// `raise` does not look at the entry.
    RaiseWithoutOwnerCheck,
    /// `raise` does nothing.
    RaiseDoesNothing,
    /// `close` does nothing.
    CloseDoesNothing,
    /// Declares what it has not.
    DeclaresTooMuch,
}

/// Each mutant, and the cases that must fail on it.
const MUTANTS: &[(Fault, &[&str])] = &[
    (Fault::ReleaseWithoutOwnerCheck, &["owner_only", "stale_handle"]),
    (Fault::ReleaseDoesNothing, &["basic_cycle", "no_residue"]),
    (Fault::RenewWithoutOwnerCheck, &["owner_only"]),
    (Fault::RenewRecreates, &["late_renew_revives_nothing"]),
    (Fault::RenewSkipped, &["renewal_keeps_the_lock", "renewal_is_kept_up"]),
    (Fault::RenewStopsAtTheFirst, &["renew_answers_each"]),
    (Fault::RenewShortens, &["renew_never_shortens"]),
    (Fault::AskingAgainIsNew, &["acquire_is_idempotent"]),
    (Fault::OldNumberAfterExpiry, &["late_acquire_revives_nothing"]),
    (Fault::TokensStartAgain, &["tokens_grow", "churn_exclusive"]),
    (Fault::TokensOfTheClient, &["tokens_grow_over_reconnect"]),
    (Fault::TryJoins, &["try_is_busy"]),
    (Fault::TryPassesWaiters, &["unfair_never_passes_a_waiter"]),
    (Fault::LastComeFirstServed, &["fifo_order"]),
    (Fault::ReadersPassWriters, &["shared_admission", "random_lines_follow_the_specification"]),
    (Fault::NoSharing, &["shared_admission", "mixed_modes"]),
    (Fault::PermitsNotCounted, &["permit_admission"]),
    (Fault::LeaseTooShort, &["expiry_and_takeover"]),
    (Fault::NoDelay, &["lock_delay"]),
    (Fault::WaitersStay, &["dead_waiter_leaves_the_line", "promoted_waiter_keeps_its_waiter_lease"]),
    (Fault::EarlyWakeIsLost, &["early_wake_is_kept"]),
    (Fault::Herd, &["only_the_promoted_are_woken"]),
    (Fault::NoWake, &["only_the_promoted_are_woken", "guard_cycle"]),
    (Fault::EvictAnything, &["evict_compares_the_token"]),
    (Fault::ShowsHolderIds, &["inspect_shows_the_line"]),
    (Fault::ListsEverything, &["list_by_prefix"]),
    (Fault::NamesFolded, &["hostile_names", "name_pairs_never_meet"]),
    (Fault::NamesCut, &["hostile_names"]),
    (Fault::RaiseWithoutOwnerCheck, &["raise_while_ours"]),
    (Fault::RaiseDoesNothing, &["raise_while_ours"]),
    (Fault::CloseDoesNothing, &["closed_backend_refuses"]),
    (Fault::DeclaresTooMuch, &["capabilities_are_as_declared"]),
];

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
            (Fault::PermitsNotCounted, Mode::Permit(_)) => Mode::permit(1000).unwrap(),
            _ => mode,
        }
    }

    fn ticket(&self, ticket: &Ticket) -> Ticket {
        Ticket { name: self.name(&ticket.name), mode: self.mode(ticket.mode), ..ticket.clone() }
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

    async fn renew_one(&self, due: &Renewal) -> Result<Renewed> {
        let due = Renewal { ticket: self.ticket(&due.ticket), ..due.clone() };
        let answer = self.inner.renew(std::slice::from_ref(&due)).await.remove(0)?;
        match (self.fault, answer) {
            (Fault::RenewWithoutOwnerCheck, Renewed::NotHeld) => {
                let line = self.inner.inspect(&due.ticket.name).await?;
                let holder = line.holders.first();
                Ok(holder
                    .map_or(Renewed::NotHeld, |h| Renewed::Held(Grant { token: h.token, lease: due.lease })))
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
            (_, Renewed::Held(grant)) => {
                let number = self.number(&due.ticket.name, due.ticket.holder, grant.token);
                Ok(Renewed::Held(Grant { token: number, ..grant }))
            }
            (_, answer) => Ok(answer),
        }
    }
}

fn request_of(due: &Renewal) -> Request {
    Request {
        name: due.ticket.name.clone(),
        holder: due.ticket.holder,
        mode: due.ticket.mode,
        lease: due.lease,
        waiter_lease: due.waiter_lease,
        delay: due.ticket.delay,
        queue: true,
        note: Note::default(),
    }
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
        let mut request =
            Request { name: self.name(&request.name), mode: self.mode(request.mode), ..request.clone() };
        match self.fault {
            Fault::NoDelay => request.delay = Duration::ZERO,
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
                    return Ok(Standing::Held(Grant { token: token(i64::MAX - 1), lease: request.lease }));
                }
            }
            _ => {}
        }
        let standing = self.inner.acquire(&request).await?;
        Ok(match standing {
            Standing::Held(grant) => {
                let lease = if self.has(Fault::LeaseTooShort) { grant.lease * 2 } else { grant.lease };
                Standing::Held(Grant {
                    token: self.number(&request.name, request.holder, grant.token),
                    lease,
                })
            }
            Standing::Waiting(_) if self.has(Fault::LastComeFirstServed) => {
                self.to_the_front(&request, standing).await?
            }
            Standing::Waiting(_) if self.has(Fault::TryJoins) => Standing::Busy(Busy { retry_after: None }),
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
                let due = Renewal {
                    ticket: ticket.clone(),
                    lease: Duration::from_millis(10),
                    waiter_lease: Duration::from_millis(10),
                };
                if let Ok(Renewed::Held(_)) = self.inner.renew(&[due]).await.remove(0) {
                    std::future::pending().await
                }
                self.inner.wait(&ticket).await
            }
            _ => self.inner.wait(&ticket).await,
        }
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut answers = Vec::new();
        for one in due {
            let stopped =
                self.has(Fault::RenewStopsAtTheFirst) && matches!(answers.last(), Some(Ok(Renewed::NotHeld)));
            answers.push(match one.ticket.token {
                Some(token) if self.has(Fault::RenewSkipped) => {
                    Ok(Renewed::Held(Grant { token, lease: one.lease }))
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
            let request = Request {
                holder: probe,
                ..request_of(&Renewal {
                    ticket: ticket.clone(),
                    lease: Duration::from_secs(1),
                    waiter_lease: Duration::from_secs(1),
                })
            };
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
        match self.fault {
            Fault::RaiseDoesNothing => Ok(Raise::Raised),
            Fault::RaiseWithoutOwnerCheck => {
                let other = Request {
                    name: LockName::new("raise")?,
                    holder: HolderId::random()?,
                    ..request_of(&Renewal {
                        ticket,
                        lease: Duration::from_secs(1),
                        waiter_lease: Duration::from_secs(1),
                    })
                };
                self.inner.acquire(&other).await?;
                let raised = self.inner.raise(&other.ticket(), token).await;
                self.inner.release(&other.ticket()).await?;
                raised
            }
            _ => self.inner.raise(&ticket, token).await,
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        Ok(Snapshot { name: name.clone(), ..self.inner.inspect(&self.name(name)).await? })
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

fn harness(fault: Fault) -> Arc<dyn Harness> {
    let shared = Arc::new(Shared::default());
    Arc::new(Memory::wrapped("mutant", move |inner| {
        Arc::new(Mutant { inner, fault, shared: Arc::clone(&shared), own: Mutex::new(0) })
    }))
}

/// Every mutant is refuted by each of the cases that name its fault.
#[test]
fn every_mutant_is_named() {
    let faults: Vec<_> =
        MUTANTS.iter().flat_map(|(fault, cases)| cases.iter().map(|case| (*fault, *case))).collect();
    let lanes: Vec<_> = (0..4)
        .map(|lane| {
            let faults: Vec<_> = faults.iter().copied().skip(lane).step_by(4).collect();
            std::thread::spawn(move || {
                faults.into_iter().filter_map(|(fault, case)| survives(fault, case)).collect()
            })
        })
        .collect();
    let survivors: Vec<String> =
        lanes.into_iter().flat_map(|lane| -> Vec<String> { lane.join().unwrap() }).collect();
    assert!(survivors.is_empty(), "mutants that live:\n{}", survivors.join("\n"));
}

/// What went wrong when a case did not fail on a mutant.
fn survives(fault: Fault, name: &str) -> Option<String> {
    let Some(case) = case::all().find(|case| case.name == name) else {
        return Some(format!("`{name}` is no case"));
    };
    match runner::run_case(harness(fault), case) {
        Err(Stop::Failed(text)) => {
            println!("{fault:?}: {name}: {text}");
            None
        }
        other => Some(format!("{fault:?}: {name}: {other:?}")),
    }
}
