//! The acquire loop: ask, wait in the line, ask again; polled in place and droppable at any await.

use std::sync::Arc;
use std::time::Duration;

use super::cancel_safe::{CancelSafe, renew_one};
use super::entry::{Entry, Upkeep, View};
use super::progress::Progress;
use super::retry::Retry;
use super::shared::Client;
use crate::backend::{Note, Renewed, Request, Standing, Ticket, Wake};
use crate::clock::{Timestamp, sleep_until};
use crate::error::{Error, ErrorKind, Result};
use crate::holder::HolderId;
use crate::mode::Mode;
use crate::model::loss::LossReason;
use crate::model::request::may_have_joined;
use crate::name::LockName;
use crate::token::{FencingToken, TokenEpoch};

/// What a lock asks for.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
    pub(super) waiter_lease: Duration,
    pub(super) delay: Duration,
    pub(super) note: Note,
    pub(super) fair: bool,
    pub(super) retry: Retry,
    pub(crate) upkeep: Upkeep,
}

impl Terms {
    fn request(&self, queue: bool, epoch: TokenEpoch) -> Result<Request> {
        let lease = self.upkeep.at_least.map_or(self.upkeep.lease, |least| least.max(self.upkeep.lease));
        Ok(Request::new(self.name.clone(), HolderId::random()?, self.mode, lease)
            .waiter_lease(self.waiter_lease.min(self.upkeep.lease))
            .delay(self.delay)
            .queue(queue)
            .note(self.note.clone())
            .epoch(epoch))
    }
}

/// An entry in the store that this client must give back: its drop does.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) client: Arc<Client>,
    pub(crate) entry: Arc<Entry>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Handle {
    /// Gives the entry back in the background, if that is still to do.
    pub(crate) fn give_back(&self) {
        if self.entry.is_released() {
            return;
        }
        // Before the entry is seen as over: a task that waits for that may close the client next, and must wait for the release.
        let _counted = self.client.background.begin();
        let now = self.client.clock.now();
        self.entry.end(now, LossReason::Released);
        self.client.settle(&self.entry, now);
        self.client.give_back(&self.entry);
    }
}

enum Attempt {
    Held(Handle),
    Busy(Option<Duration>),
    /// The entry stood in the line and left it before it held.
    LostPlace(Error),
}

/// The failed attempts in a row.
struct Failed {
    count: u32,
    /// When the store answered last, or the acquisition began.
    answered: Timestamp,
}

impl Failed {
    fn new(client: &Client) -> Self {
        Self { count: 0, answered: client.clock.now() }
    }

    /// Counts one more; `None` when there is to be no further attempt.
    fn again(&mut self, client: &Client, terms: &Terms, error: &Error) -> Option<u32> {
        self.count = self.count.saturating_add(1);
        if error.was_queued() {
            self.answered = client.clock.now();
        }
        let silent = client.clock.now().saturating_since(self.answered);
        let few = self.count <= terms.retry.errors;
        let short = terms.retry.errors > 0 && silent < terms.waiter_lease.min(terms.upkeep.lease);
        (few || short).then_some(self.count)
    }
}

/// Asks until it holds, and the caller bounds the time by dropping it; once where there is no progress to tell.
pub(super) async fn acquire(
    client: &Arc<Client>,
    terms: &Terms,
    waits: Option<&Progress>,
) -> Result<Option<Handle>> {
    let mut tries = 0_u32;
    let mut failed = Failed::new(client);
    loop {
        let attempted = attempt(client, terms, waits.filter(|_| terms.fair)).await;
        let Some(progress) = waits else {
            return match attempted? {
                Attempt::Held(handle) => Ok(Some(handle)),
                Attempt::Busy(_) => Ok(None),
                // Nobody is known to be ahead.
                Attempt::LostPlace(cause) => Err(cause),
            };
        };
        let error = match attempted {
            Ok(Attempt::Held(handle)) => return Ok(Some(handle)),
            Ok(Attempt::Busy(retry_after)) => {
                progress.others_ahead();
                tries = tries.saturating_add(1);
                failed = Failed::new(client);
                if terms.retry.attempts.is_some_and(|most| tries >= most) {
                    let text = format!("`{}` was busy {tries} times", terms.name);
                    return Err(Error::new(ErrorKind::Busy, text).at(&client.info.address));
                }
                let longest = retry_after.unwrap_or(Duration::MAX).max(Duration::from_millis(1));
                until_next(client, random_pause(&terms.retry, tries).min(longest)).await;
                continue;
            }
            Ok(Attempt::LostPlace(cause)) => {
                // To have stood in the line is progress.
                failed = Failed::new(client);
                cause
            }
            Err(error) if error.is_retryable() => error.during("acquire"),
            Err(error) => return Err(error.during("acquire").at(&client.info.address)),
        };
        let Some(count) = failed.again(client, terms, &error) else {
            return Err(error.at(&client.info.address));
        };
        progress.failed(error);
        until_next(client, random_pause(&terms.retry, count)).await;
    }
}

/// Pauses before the next attempt, which finds out when the client is closed: in steps, so that this is within a second.
pub(crate) async fn until_next(client: &Client, mut pause: Duration) {
    const STEP: Duration = Duration::from_secs(1);
    while client.open().is_ok() && client.sleep(pause.min(STEP)).await && pause > STEP {
        pause -= STEP;
    }
}

fn random_pause(retry: &Retry, count: u32) -> Duration {
    retry.pause(count, getrandom::u64().unwrap_or_default())
}

/// One acquisition under a fresh holder id. It waits in the line where there is progress to tell.
async fn attempt(client: &Arc<Client>, terms: &Terms, line: Option<&Progress>) -> Result<Attempt> {
    // Counted first and checked then, so that `close` either refuses it here or waits for it.
    let asking = client.background.begin();
    client.open()?;
    let request = Arc::new(terms.request(line.is_some(), client.settings.token_epoch)?);
    let sent = client.clock.now();
    let standing = ask(client, &request).await?;
    let now = client.clock.now();
    let answer = match standing {
        Standing::Busy(busy) => return Ok(Attempt::Busy(busy.retry_after)),
        Standing::Held(grant) => Renewed::Held(grant),
        Standing::Waiting(place) => Renewed::Waiting(place),
    };
    let entry = match Entry::new(&request, terms.upkeep, sent, now, answer) {
        Ok(entry) => Arc::new(entry),
        Err(error) => {
            settle_unclear(client, &request, &Ok(standing));
            return Err(error);
        }
    };
    let handle = Handle { client: Arc::clone(client), entry };
    // Held: the caller has it in this same poll.
    let held = handle.entry.receive(now);
    client.schedule.track(&handle.entry);
    // Closed while the request was under way: the renewer may have been emptied before this entry came into care. No caller has had
    // it then, and it keeps nobody waiting.
    client.open().inspect_err(|_| handle.entry.take_back(now, |_| false))?;
    if held {
        return Ok(Attempt::Held(handle));
    }
    match (handle.entry.view(now), line) {
        (View::Waiting { .. }, Some(progress)) => {
            drop(asking);
            progress.waits(handle.entry.token());
            // In a place of its own: most acquisitions do not wait.
            Box::pin(in_line(handle)).await
        }
        (View::Held { .. } | View::Waiting { .. }, _) => {
            Err(Error::new(ErrorKind::Protocol, "the store put an entry in the line that was not to wait"))
        }
        // The answer took longer than the lease: not held.
        (View::Over(_), _) => {
            Err(Error::new(ErrorKind::Timeout, "the store answered after the lease had ended"))
        }
    }
}

/// Takes a lock that is left to its lease: nobody but this client knows its name and holder.
pub(crate) async fn claim(client: &Arc<Client>, ticket: &Ticket, lease: Duration) -> Result<FencingToken> {
    let request = Request::new(ticket.name.clone(), ticket.holder, ticket.mode, lease)
        .delay(ticket.delay)
        .queue(false)
        .note(client.note.clone())
        .epoch(client.settings.token_epoch);
    match ask(client, &Arc::new(request)).await? {
        Standing::Held(grant) => Ok(grant.token),
        _ => Err(Error::new(
            ErrorKind::Protocol,
            format!("`{}`, which nobody else asks for, is busy", ticket.name),
        )),
    }
}

/// Sends the acquire. Dropped half way, it runs on in the background and what it got is given back, as is what a failed one may
/// have got.
async fn ask(client: &Arc<Client>, request: &Arc<Request>) -> Result<Standing> {
    let (backend, sent) = (Arc::clone(&client.backend), Arc::clone(request));
    let abandoned = Arc::clone(request);
    let call = Box::pin(async move { backend.acquire(&sent).await });
    let after = move |client: &_, answer| settle_unclear(client, &abandoned, &answer);
    let asked = CancelSafe::new(client, call, after).await;
    if asked.is_err() {
        settle_unclear(client, request, &asked);
    }
    asked
}

/// Gives back what an acquire that nobody waits for may have got.
fn settle_unclear(client: &Arc<Client>, request: &Request, answer: &Result<Standing>) {
    if may_have_joined(answer) {
        client.release_later(request.ticket(), request.lease + request.delay, true);
    }
}

/// Waits in the line. The renewer renews the place meanwhile.
async fn in_line(handle: Handle) -> Result<Attempt> {
    let (client, entry) = (Arc::clone(&handle.client), Arc::clone(&handle.entry));
    let mut failures = 0_u32;
    loop {
        let changed = entry.changed.notified();
        let now = client.clock.now();
        if entry.is_to_be_lengthened() {
            ask_again(&handle).await;
            continue;
        }
        if entry.receive(now) {
            // One renewal, off the critical path and a little later, makes the waiter's lease a holder's.
            client.schedule.track(&entry);
            return Ok(Attempt::Held(handle));
        }
        let (ask_at, deadline) = match entry.view(now) {
            View::Waiting { ask_at, deadline } => (ask_at, deadline),
            View::Held { .. } => continue,
            View::Over(LossReason::Closed) => return Err(client.is_closed("this client has been closed")),
            View::Over(reason) => {
                let cause = entry.failure();
                // The store was reached all the time and has no such entry: somebody removed it.
                if reason == LossReason::NotHeld && cause.is_none() {
                    return Err(evicted(&client, &entry));
                }
                return Ok(Attempt::LostPlace(cause.unwrap_or_else(lost_place)));
            }
        };
        let woken = tokio::select! {
            biased;
            woken = client.backend.wait(entry.ticket()) => woken,
            () = changed => continue,
            () = sleep_until(&client.clock, ask_at.unwrap_or(deadline).min(deadline)) => Ok(Wake::Ask),
        };
        match woken {
            Ok(wake) => {
                failures = 0;
                if !matches!(wake, Wake::Held(token) if entry.pushed(token, client.clock.now())) {
                    ask_again(&handle).await;
                }
            }
            Err(error) if error.is_retryable() => {
                failures += 1;
                entry.failed(client.clock.now(), error);
                pause(failures).await;
            }
            Err(error) => return Err(error.during("wait").at(&client.info.address)),
        }
    }
}

fn lost_place() -> Error {
    Error::new(ErrorKind::Unavailable, "the place in the line was lost again and again")
}

fn evicted(client: &Client, entry: &Entry) -> Error {
    let text = format!("the entry that waited for `{}` was removed from the line", entry.ticket().name);
    Error::new(ErrorKind::Evicted, text).during("wait").at(&client.info.address)
}

/// Renews the place now, to see whether it holds.
async fn ask_again(handle: &Handle) {
    let (client, entry) = (&handle.client, &handle.entry);
    let sent = client.clock.now();
    if matches!(entry.view(sent), View::Over(_)) {
        return;
    }
    let answer = renew_one(client, entry.renewal(sent)).await;
    entry.renewed(sent, client.clock.now(), &answer);
    client.schedule.track(entry);
    if answer.is_err() {
        pause(1).await;
    }
}

/// Waits a little after a failed call.
async fn pause(failures: u32) {
    tokio::time::sleep(random_pause(&Retry::default(), failures)).await;
}
