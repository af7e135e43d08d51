//! One attempt to hold a majority: ask all, count, lift the counters behind, or give everything back.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::fanout::{may_be_there, tally};
use super::hold::{Hold, Mark};
use super::renew::renew;
use crate::backend::{Backend, Busy, Grant, Raise, Release, Renewal, Renewed, Request, Standing};
use crate::error::Result;
use crate::holder::HolderId;
use crate::token::FencingToken;

pub(super) async fn acquire(shared: &Arc<Shared>, request: &Request) -> Result<Standing> {
    let (owner, mark, note) = (request.holder, Mark::random()?, request.note.clone());
    let mut request = request.clone().queue(false).note(mark.on(&note, None)?);
    let known = shared.holds().get(&owner).is_some_and(|hold| hold.name == request.name);
    if known {
        // Asked again for what this client holds. Another attempt could find another number.
        let renewal = Renewal::new(request.ticket(), request.lease, request.waiter_lease);
        match renew(shared, &[renewal]).await.pop() {
            Some(Ok(Renewed::Held(grant))) => return Ok(Standing::Held(grant)),
            Some(Err(error)) => return Err(error),
            // Lost: what is left of it is being given back, under the id that it has.
            _ => request.holder = HolderId::random()?,
        }
    }
    let request = Arc::new(request);
    let answers = ask(shared, &request).await;
    let grants: Vec<_> = answers.iter().map(granted).collect();
    let outcome = match grants.iter().flatten().count() >= shared.majority() {
        true => fence(shared, &request, &grants).await,
        false => Err(Failure::Minority),
    };
    let token = match outcome {
        Ok(token) => token,
        Err(failure) => {
            give_all_back(shared, &request, &answers).await;
            return failure.answer(shared, &answers);
        }
    };
    // Who did not answer may have granted; `late` deals with it when it says so, and this when it never does.
    for (member, answer) in answers.iter().enumerate() {
        if matches!(answer, Some(Err(error)) if error.is_unclear()) {
            shared.give_back(member, request.ticket(), request.lease + request.delay);
        }
    }
    let entries = grants.iter().map(|grant| grant.map(|grant| request.ticket().token(grant.token))).collect();
    let note = mark.on(&note, Some(token))?;
    shared.holds().insert(owner, Hold::new(&request, note, token, entries));
    let lease = kept(shared, grants.iter().flatten().map(|grant| grant.lease).collect());
    Ok(Standing::Held(Grant::new(token, lease)))
}

/// The lease that a majority gave at least.
pub(super) fn kept(shared: &Shared, mut leases: Vec<Duration>) -> Duration {
    leases.sort_unstable_by(|a, b| b.cmp(a));
    leases.get(shared.majority() - 1).copied().unwrap_or_default()
}

fn granted(answer: &Option<Result<Standing>>) -> Option<Grant> {
    match answer {
        Some(Ok(Standing::Held(grant))) => Some(*grant),
        _ => None,
    }
}

async fn ask(shared: &Arc<Shared>, request: &Arc<Request>) -> Vec<Option<Result<Standing>>> {
    let majority = shared.majority();
    let call = |i: usize, member: Arc<dyn Backend>| {
        let (request, shared) = (Arc::clone(request), Arc::clone(shared));
        Some(async move {
            let answer = match shared.vote(i).await {
                Ok(()) => member.acquire(&request).await,
                Err(error) => Err(error),
            };
            if answer.is_err() {
                shared.tend(i);
            }
            answer
        })
    };
    let enough = |answers: &[Option<Result<Standing>>]| {
        let grants = answers.iter().filter(|answer| granted(answer).is_some()).count();
        // Won, or lost whatever the others say.
        let open = answers.iter().filter(|answer| answer.is_none()).count();
        grants >= majority || grants + open < majority
    };
    let (late_shared, late_request) = (Arc::clone(shared), Arc::clone(request));
    let late = move |member, answer: Result<Standing>| {
        if may_be_there(&answer) {
            let lease = late_request.lease + late_request.delay;
            late_shared.give_back(member, late_request.ticket(), lease);
        }
    };
    shared.ask(call, enough, late).await
}

/// Why an attempt that could ask everybody does not hold.
enum Failure {
    /// Fewer than a majority granted.
    Minority,
    /// Fewer than a majority came to the token with the entry still there.
    Unfenced,
}

impl Failure {
    fn answer(self, shared: &Shared, answers: &[Option<Result<Standing>>]) -> Result<Standing> {
        let (answered, errors) = tally(answers);
        if answered >= shared.majority() {
            return Ok(Standing::Busy(Busy::default()));
        }
        // A refusal that every retry would meet again is the better answer.
        let refused = errors.iter().find(|error| !error.is_retryable());
        Err(refused.cloned().unwrap_or_else(|| shared.too_few(answered, &errors)))
    }
}

/// The token of an attempt that a majority granted, with the counters of a majority lifted to it.
async fn fence(
    shared: &Arc<Shared>,
    request: &Arc<Request>,
    grants: &[Option<Grant>],
) -> Result<FencingToken, Failure> {
    // Members may differ in whether their numbers carry the epoch: compared are tokens, and each is raised as it counts.
    let epoch = request.epoch;
    let token =
        grants.iter().flatten().map(|grant| epoch.shown(grant.token)).max().ok_or(Failure::Minority)?;
    let at_token = |grant: &Option<Grant>| grant.is_some_and(|grant| epoch.shown(grant.token) == token);
    let there = grants.iter().filter(|grant| at_token(grant)).count();
    if !shared.capabilities.fencing || there >= shared.majority() {
        return Ok(token);
    }
    let need = shared.majority() - there;
    // Only members that granted to this attempt, and each only while the entry is still this attempt's.
    let call = |i: usize, member: Arc<dyn Backend>| {
        let grant: Grant = grants[i].filter(|grant| !at_token(&Some(*grant)))?;
        let ticket = request.ticket().token(grant.token);
        let number = epoch.counted_like(token, grant.token);
        Some(async move { member.raise(&ticket, number).await })
    };
    let raised = |answers: &[Option<Result<Raise>>]| {
        answers.iter().filter(|answer| matches!(answer, Some(Ok(Raise::Raised)))).count() >= need
    };
    let answers = shared.ask(call, raised, |_, _| ()).await;
    if raised(&answers) { Ok(token) } else { Err(Failure::Unfenced) }
}

/// Gives back what a failed attempt has or may have, and waits for it (within the members' time), so that the next
/// attempt does not meet this one.
async fn give_all_back(shared: &Arc<Shared>, request: &Arc<Request>, answers: &[Option<Result<Standing>>]) {
    let call = |i: usize, member: Arc<dyn Backend>| {
        // The late answer of the others is dealt with when it comes.
        let owed = answers[i].as_ref().is_some_and(may_be_there);
        let ticket = request.ticket();
        owed.then_some(async move { member.release(&ticket).await })
    };
    let all = |_: &[Option<Result<Release>>]| false;
    let (late_shared, late_request) = (Arc::clone(shared), Arc::clone(request));
    let again = move |member: usize, answer: Result<Release>| {
        if answer.is_err_and(|error| error.is_retryable()) {
            let lease = late_request.lease + late_request.delay;
            late_shared.give_back(member, late_request.ticket(), lease);
        }
    };
    let done = shared.ask(call, all, again.clone()).await;
    for (member, answer) in done.into_iter().enumerate() {
        if let Some(answer) = answer {
            again(member, answer);
        }
    }
}
