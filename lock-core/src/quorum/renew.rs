//! Keeping and ending a hold: renewals, joining members that came back, releases, raising.

use std::sync::Arc;
use std::time::Duration;

use super::fanout::{Answer, count, tally};
use super::hold::QuorumHold;
use super::shared::Shared;
use crate::backend::{Backend, Grant, Raise, Release, Renewal, Renewed, Request, Standing, Ticket};
use crate::error::{Error, Result};
use crate::holder::HolderId;
use crate::model::request::may_have_joined;
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
            let mut answers = member.renew(&due).await;
            for ((place, renewal), answer) in places.iter().zip(&due).zip(&mut answers) {
                let another = |grant: &Grant| renewal.ticket.token.is_some_and(|own| own != grant.token);
                if matches!(answer, Ok(Renewed::Held(grant)) if another(grant)) {
                    // Made by a late request of this holder: the entry that counts is gone, and others may have held since.
                    shared.give_back(i, renewal.ticket.clone(), renewal.lease + renewal.ticket.delay);
                    *answer = Ok(Renewed::NotHeld);
                }
                if matches!(answer, Ok(Renewed::NotHeld | Renewed::Waiting(_))) {
                    shared.forget(owners[*place], i, &renewal.ticket);
                }
            }
            Ok(places.into_iter().zip(answers).collect())
        })
    };
    let votes = |answers: &[Answer<Said>]| votes(due.len(), &batches, answers);
    let decided = |answers: &[Answer<Said>]| {
        votes(answers).iter().all(|vote| vote.held() >= shared.majority() || vote.is_lost(shared))
    };
    let answers = shared.ask(call, decided, |_, _| ()).await;
    let votes = votes(&answers);
    due.iter().zip(votes).map(|(renewal, vote)| conclude(shared, renewal, vote)).collect()
}

/// The renewals of each member.
fn batches(shared: &Shared, due: &[Renewal]) -> Vec<Vec<(usize, Renewal)>> {
    let mut batches = vec![Vec::new(); shared.members.len()];
    let mut holds = shared.holds.lock();
    for (place, renewal) in due.iter().enumerate() {
        if shared.check_entry(renewal.lease, renewal.ticket.delay).is_err() {
            continue;
        }
        let Some(hold) = holds.get_mut(&renewal.ticket.holder) else { continue };
        // A member may give it whatever the others say.
        hold.lasts(renewal.lease);
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
struct Tally {
    leases: Vec<Duration>,
    /// Members that may have it: asked and not answered, or failed.
    unknown: usize,
    errors: Vec<Error>,
}

impl Tally {
    fn held(&self) -> usize {
        self.leases.len()
    }

    fn is_lost(&self, shared: &Shared) -> bool {
        self.held() + self.unknown < shared.majority()
    }
}

fn votes(due: usize, batches: &[Vec<(usize, Renewal)>], answers: &[Answer<Said>]) -> Vec<Tally> {
    let mut votes = vec![Tally::default(); due];
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

fn conclude(shared: &Arc<Shared>, renewal: &Renewal, vote: Tally) -> Result<Renewed> {
    shared.check_entry(renewal.lease, renewal.ticket.delay)?;
    let owner = renewal.ticket.holder;
    if vote.is_lost(shared) {
        let mut holds = shared.holds.lock();
        // Its owner may have asked again since, and hold by another number.
        let asked = |hold: &QuorumHold| renewal.ticket.token.is_none_or(|token| token == hold.token);
        let lost = if holds.get(&owner).is_some_and(asked) { holds.remove(&owner) } else { None };
        // Nobody will release it: what is left on a minority is given back here.
        if let Some(hold) = lost {
            let left = hold.left();
            for (member, entry) in hold.entries.into_iter().enumerate() {
                if let Some(ticket) = entry {
                    shared.give_back(member, ticket, left);
                }
            }
        }
        return Ok(Renewed::NotHeld);
    }
    join_missing(shared, owner, renewal.lease);
    if vote.held() < shared.majority() {
        return Err(shared.too_few(vote.held(), &vote.errors));
    }
    let Some(token) = shared.holds.lock().get(&owner).map(|hold| hold.token) else {
        return Ok(Renewed::NotHeld);
    };
    Ok(Renewed::Held(Grant::new(token, shared.lease(vote.leases))))
}

/// Asks members without an entry for one, under a fresh holder id each time, so that no member ever grants twice to
/// one id. It counts from the next renewal on.
fn join_missing(shared: &Arc<Shared>, owner: HolderId, lease: Duration) {
    let mut holds = shared.holds.lock();
    let Some(hold) = holds.get_mut(&owner) else { return };
    hold.lasts(lease);
    for member in 0..hold.entries.len() {
        if hold.entries[member].is_some() || hold.joining[member] {
            continue;
        }
        let Ok(holder) = HolderId::random() else { return };
        hold.joining[member] = true;
        let (request, joining) = (Request { holder, ..hold.request.clone() }, Arc::clone(shared));
        let token = hold.token;
        shared.spawn(async move {
            let answer = joining.join(member, &request).await;
            joining.take_joined(owner, token, member, &request, &answer);
        });
    }
}

impl Shared {
    /// Asks one member for an entry, if it has a vote.
    pub(super) async fn join(self: &Arc<Self>, member: usize, request: &Request) -> Result<Standing> {
        self.vote(member).await?;
        self.members[member].acquire(request).await
    }

    /// The entry on this member is gone.
    fn forget(&self, owner: HolderId, member: usize, asked: &Ticket) {
        if let Some(hold) = self.holds.lock().get_mut(&owner)
            && hold.entries[member]
                .as_ref()
                .is_some_and(|ticket| (ticket.holder, ticket.token) == (asked.holder, asked.token))
        {
            hold.entries[member] = None;
        }
    }

    fn take_joined(
        self: &Arc<Self>,
        owner: HolderId,
        token: FencingToken,
        member: usize,
        request: &Request,
        answer: &Result<Standing>,
    ) {
        // The owner may have lost that hold, and hold by another number.
        if let Some(hold) = self.holds.lock().get_mut(&owner).filter(|hold| hold.token == token) {
            hold.joining[member] = false;
            if let Ok(Standing::Held(grant)) = answer {
                hold.entries[member] = Some(request.ticket().token(grant.token));
                return;
            }
        }
        if may_have_joined(answer) {
            self.give_back(member, request.ticket(), request.lease + request.delay);
        }
    }
}

/// Ends a hold on all members; those that do not answer go on being asked in the background.
pub(super) async fn release(shared: &Arc<Shared>, ticket: &Ticket) -> Result<Release> {
    let hold = shared.holds.lock().remove(&ticket.holder);
    let lease = hold.as_ref().map_or(Duration::ZERO, QuorumHold::left);
    // Of a hold this client does not know, an attempt may have left something anywhere.
    let entries = hold.map_or_else(|| vec![Some(ticket.clone()); shared.members.len()], |hold| hold.entries);
    let asked = entries.iter().flatten().count();
    let answers = shared.release(&entries, lease, shared.majority()).await;
    let (answered, errors) = tally(&answers);
    let released = count(&answers, Release::Released);
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
    let hold = shared.holds.lock().get(&ticket.holder).map(|hold| (hold.entries.clone(), hold.request.epoch));
    let Some((entries, epoch)) = hold else { return Ok(Raise::NotHeld) };
    let asked = entries.iter().flatten().count();
    let call = |i: usize, member: Arc<dyn Backend>| {
        let ticket = entries[i].clone()?;
        let number = ticket.token.map_or(token, |own| epoch.counted_like(token, own));
        Some(async move { member.raise(&ticket, number).await })
    };
    let enough = |answers: &[Answer<_>]| count(answers, Raise::Raised) >= shared.majority();
    let answers = shared.ask(call, enough, |_, _| ()).await;
    let (answered, errors) = tally(&answers);
    if enough(&answers) {
        Ok(Raise::Raised)
    } else if count(&answers, Raise::Raised) + (asked - answered) < shared.majority() {
        Ok(Raise::NotHeld)
    } else {
        Err(shared.too_few(answered, &errors))
    }
}
