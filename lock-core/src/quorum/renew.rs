//! Keeping and ending a hold: renewals, joining members that came back, releases, raising.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::acquire::kept;
use super::fanout::{may_be_there, tally};
use crate::backend::{Backend, Grant, Raise, Release, Renewal, Renewed, Request, Standing, Ticket};
use crate::error::{Error, Result};
use crate::holder::HolderId;
use crate::token::FencingToken;

/// What one member said of some of the renewals, by their place among all that are due.
type Said = Vec<(usize, Result<Renewed>)>;

/// Renews every hold on every member that has an entry of it, one batch a member; a hold is renewed when a majority
/// says so. Members without an entry are asked for one in the background.
pub(super) async fn renew(shared: &Arc<Shared>, due: &[Renewal]) -> Vec<Result<Renewed>> {
    let batches = batches(shared, due);
    let owners: Arc<Vec<HolderId>> = Arc::new(due.iter().map(|renewal| renewal.ticket.holder).collect());
    let call = |i: usize, member: Arc<dyn Backend>| {
        let batch: Vec<(usize, Renewal)> = batches[i].clone();
        let (shared, owners) = (Arc::clone(shared), Arc::clone(&owners));
        (!batch.is_empty()).then_some(async move {
            let (places, due): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            let answers = member.renew(&due).await;
            if answers.iter().any(Result::is_err) {
                shared.tend(i);
            }
            for ((place, renewal), answer) in places.iter().zip(&due).zip(&answers) {
                if matches!(answer, Ok(Renewed::NotHeld | Renewed::Waiting(_))) {
                    shared.forget(owners[*place], i, renewal.ticket.holder);
                }
            }
            Ok(places.into_iter().zip(answers).collect())
        })
    };
    let votes = |answers: &[Option<Result<Said>>]| count(shared, due.len(), &batches, answers);
    let decided = |answers: &[Option<Result<Said>>]| {
        votes(answers).iter().all(|vote| vote.held() >= shared.majority() || vote.is_lost(shared))
    };
    let answers = shared.ask(call, decided, |_, _| ()).await;
    let votes = votes(&answers);
    due.iter().zip(votes).map(|(renewal, vote)| conclude(shared, renewal, vote)).collect()
}

/// The renewals of each member.
fn batches(shared: &Shared, due: &[Renewal]) -> Vec<Vec<(usize, Renewal)>> {
    let mut batches = vec![Vec::new(); shared.members.len()];
    let holds = shared.holds();
    for (place, renewal) in due.iter().enumerate() {
        let Some(hold) = holds.get(&renewal.ticket.holder) else { continue };
        for (batch, entry) in batches.iter_mut().zip(&hold.entries) {
            if let Some(ticket) = entry {
                batch.push((place, Renewal { ticket: ticket.clone(), ..renewal.clone() }));
            }
        }
    }
    batches
}

/// What the members say of one hold.
#[derive(Clone, Default)]
struct Vote {
    leases: Vec<Duration>,
    /// Members that may have it: asked and not answered, or failed.
    unknown: usize,
    errors: Vec<Error>,
}

impl Vote {
    fn held(&self) -> usize {
        self.leases.len()
    }

    fn is_lost(&self, shared: &Shared) -> bool {
        self.held() + self.unknown < shared.majority()
    }
}

fn count(
    shared: &Shared,
    due: usize,
    batches: &[Vec<(usize, Renewal)>],
    answers: &[Option<Result<Said>>],
) -> Vec<Vote> {
    debug_assert_eq!(batches.len(), shared.members.len());
    let mut votes = vec![Vote::default(); due];
    for (batch, answer) in batches.iter().zip(answers) {
        let Some(Ok(said)) = answer else {
            batch.iter().for_each(|(place, _)| votes[*place].unknown += 1);
            continue;
        };
        for (place, answer) in said {
            match answer {
                Ok(Renewed::Held(grant)) => votes[*place].leases.push(grant.lease),
                Ok(Renewed::NotHeld | Renewed::Waiting(_)) => {}
                Err(error) => {
                    votes[*place].unknown += 1;
                    votes[*place].errors.push(error.clone());
                }
            }
        }
    }
    votes
}

fn conclude(shared: &Arc<Shared>, renewal: &Renewal, vote: Vote) -> Result<Renewed> {
    let owner = renewal.ticket.holder;
    if vote.is_lost(shared) {
        // Nobody will release it: what is left on a minority is given back here.
        if let Some(hold) = shared.holds().remove(&owner) {
            for (member, entry) in hold.entries.into_iter().enumerate() {
                if let Some(ticket) = entry {
                    shared.give_back(member, ticket, hold.lease + hold.delay);
                }
            }
        }
        return Ok(Renewed::NotHeld);
    }
    join_missing(shared, owner, renewal.lease);
    if vote.held() < shared.majority() {
        return Err(shared.too_few(vote.held(), &vote.errors));
    }
    let Some(token) = shared.holds().get(&owner).map(|hold| hold.token) else { return Ok(Renewed::NotHeld) };
    Ok(Renewed::Held(Grant::new(token, kept(shared, vote.leases))))
}

/// Asks members without an entry for one, under a fresh holder id each time, so that no member ever grants twice to
/// one id. It counts from the next renewal on.
fn join_missing(shared: &Arc<Shared>, owner: HolderId, lease: Duration) {
    let mut holds = shared.holds();
    let Some(hold) = holds.get_mut(&owner) else { return };
    hold.lease = lease;
    for member in 0..hold.entries.len() {
        let Ok(holder) = HolderId::random() else { return };
        if hold.entries[member].is_some() || std::mem::replace(&mut hold.joining[member], true) {
            continue;
        }
        let request = Request::new(hold.name.clone(), holder, hold.mode, lease)
            .delay(hold.delay)
            .queue(false)
            .note(hold.note.clone())
            .epoch(hold.epoch);
        let (backend, joined) = (Arc::clone(&shared.members[member]), Arc::clone(shared));
        shared.spawn(async move {
            let answer = match joined.vote(member).await {
                Ok(()) => backend.acquire(&request).await,
                Err(error) => Err(error),
            };
            if answer.is_err() {
                joined.tend(member);
            }
            joined.take_joined(owner, member, &request, &answer);
        });
    }
}

impl Shared {
    /// The entry on this member is gone.
    fn forget(&self, owner: HolderId, member: usize, holder: HolderId) {
        if let Some(hold) = self.holds().get_mut(&owner)
            && hold.entries[member].as_ref().is_some_and(|ticket| ticket.holder == holder)
        {
            hold.entries[member] = None;
        }
    }

    fn take_joined(
        self: &Arc<Self>,
        owner: HolderId,
        member: usize,
        request: &Request,
        answer: &Result<Standing>,
    ) {
        let granted = match answer {
            Ok(Standing::Held(grant)) => Some(*grant),
            _ => None,
        };
        let mut kept = false;
        if let Some(hold) = self.holds().get_mut(&owner) {
            hold.joining[member] = false;
            if let Some(grant) = granted {
                hold.entries[member] = Some(request.ticket().token(grant.token));
                kept = true;
            }
        }
        if may_be_there(answer) && !kept {
            self.give_back(member, request.ticket(), request.lease + request.delay);
        }
    }
}

/// Ends a hold on all members; those that do not answer go on being asked in the background.
pub(super) async fn release(shared: &Arc<Shared>, ticket: &Ticket) -> Result<Release> {
    let hold = shared.holds().remove(&ticket.holder);
    let lease = hold.as_ref().map_or(Duration::ZERO, |hold| hold.lease + hold.delay);
    // Of a hold this client does not know, an attempt may have left something anywhere.
    let entries = hold.map_or_else(|| vec![Some(ticket.clone()); shared.members.len()], |hold| hold.entries);
    let asked = entries.iter().flatten().count();
    let call = |i: usize, member: Arc<dyn Backend>| {
        entries[i].clone().map(|ticket| async move { member.release(&ticket).await })
    };
    let (late_shared, late_entries) = (Arc::clone(shared), entries.clone());
    let again = move |member: usize, answer: Result<Release>| {
        if let (Err(error), Some(ticket)) = (answer, late_entries[member].clone())
            && error.is_retryable()
        {
            late_shared.give_back(member, ticket, lease);
        }
    };
    let enough = |answers: &[Option<Result<Release>>]| {
        answers.iter().filter(|answer| matches!(answer, Some(Ok(Release::Released)))).count()
            >= shared.majority()
    };
    let answers = shared.ask(call, enough, again.clone()).await;
    let (answered, errors) = tally(&answers);
    let released = answers.iter().filter(|answer| matches!(answer, Some(Ok(Release::Released)))).count();
    for (member, answer) in answers.into_iter().enumerate() {
        if let Some(answer) = answer {
            again(member, answer);
        }
    }
    let unknown = asked - answered;
    if released + unknown < shared.majority() {
        Ok(Release::NotHeld)
    } else if unknown < shared.majority() {
        // Whatever the others still have is a minority.
        Ok(Release::Released)
    } else {
        Err(shared.too_few(answered, &errors))
    }
}

/// Lifts the counters of a majority while the entries there are still this hold's.
pub(super) async fn raise(shared: &Arc<Shared>, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
    let hold = shared.holds().get(&ticket.holder).map(|hold| (hold.entries.clone(), hold.epoch));
    let Some((entries, epoch)) = hold else { return Ok(Raise::NotHeld) };
    let asked = entries.iter().flatten().count();
    let call = |i: usize, member: Arc<dyn Backend>| {
        let ticket = entries[i].clone()?;
        let number = ticket.token.map_or(token, |own| epoch.counted_like(token, own));
        Some(async move { member.raise(&ticket, number).await })
    };
    let raised = |answers: &[Option<Result<Raise>>]| {
        answers.iter().filter(|answer| matches!(answer, Some(Ok(Raise::Raised)))).count()
    };
    let answers = shared.ask(call, |answers| raised(answers) >= shared.majority(), |_, _| ()).await;
    let (answered, errors) = tally(&answers);
    if raised(&answers) >= shared.majority() {
        Ok(Raise::Raised)
    } else if raised(&answers) + (asked - answered) < shared.majority() {
        Ok(Raise::NotHeld)
    } else {
        Err(shared.too_few(answered, &errors))
    }
}
