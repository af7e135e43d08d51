//! One attempt to hold a majority: ask all, count, lift the counters behind, or give everything back.

use std::sync::Arc;

use super::fanout::{Answer, count, tally};
use super::hold::{GroupMark, QuorumHold};
use super::renew::renew;
use super::shared::Shared;
use crate::backend::{Backend, Busy, Grant, Raise, Renewal, Renewed, Request, Standing};
use crate::error::{Error, ErrorKind, Result};
use crate::holder::HolderId;
use crate::model::request::may_have_joined;
use crate::token::FencingToken;

pub(super) async fn acquire(shared: &Arc<Shared>, request: &Request) -> Result<Standing> {
    let (owner, mark, note) = (request.holder, GroupMark::random()?, request.note.clone());
    let mut request = request.clone().queue(false).note(mark.on(&note, None)?);
    let known =
        shared.holds.lock().get(&owner).filter(|hold| hold.request.name == request.name).map(|h| h.token);
    if let Some(token) = known {
        // Asked again for what this client holds. Another attempt could find another number.
        let renewal = Renewal::new(request.ticket().token(token), request.lease, request.waiter_lease);
        match renew(shared, &[renewal]).await.pop() {
            Some(Ok(Renewed::Held(grant))) => return Ok(Standing::Held(grant)),
            // Whatever refused the renewal, the entries may still be there.
            Some(Err(error)) if !error.is_unclear() => {
                return Err(Error::new(ErrorKind::Unavailable, error.to_string()));
            }
            Some(Err(error)) => return Err(error),
            _ => {}
        }
    }
    // What an earlier attempt left is being given back under its id: that must not take the entries of this one.
    if shared.is_removing(owner) {
        request.holder = HolderId::random()?;
    }
    let request = Arc::new(request);
    let answers = ask(shared, &request).await;
    let grants: Vec<_> = answers.iter().map(granted).collect();
    let token = match fence(shared, &request, &grants).await {
        Ok(Some(token)) => token,
        failed => {
            give_all_back(shared, &request, &answers).await;
            return failed.and_then(|_| refused(shared, &answers));
        }
    };
    shared.give_back_unclear(&request, &answers);
    let entries = grants.iter().map(|grant| grant.map(|grant| request.ticket().token(grant.token))).collect();
    let request = (*request).clone().note(mark.on(&note, Some(token))?);
    shared.keep(owner, QuorumHold::new(request, token, entries));
    let lease = shared.lease(grants.iter().flatten().map(|grant| grant.lease).collect());
    Ok(Standing::Held(Grant::new(token, lease)))
}

fn granted(answer: &Answer<Standing>) -> Option<Grant> {
    match answer {
        Some(Ok(Standing::Held(grant))) => Some(*grant),
        _ => None,
    }
}

async fn ask(shared: &Arc<Shared>, request: &Arc<Request>) -> Vec<Answer<Standing>> {
    let majority = shared.majority();
    let call = |member: usize, _| {
        let (request, shared) = (Arc::clone(request), Arc::clone(shared));
        Some(async move { shared.join(member, &request).await })
    };
    let enough = |answers: &[Answer<Standing>]| {
        let grants = answers.iter().filter(|answer| granted(answer).is_some()).count();
        // Won, or lost whatever the others say.
        let open = answers.iter().filter(|answer| answer.is_none()).count();
        grants >= majority || grants + open < majority
    };
    shared.ask_for(request, call, enough).await
}

/// The answer to an attempt that does not hold.
fn refused(shared: &Shared, answers: &[Answer<Standing>]) -> Result<Standing> {
    let (answered, errors) = tally(answers);
    if answered >= shared.majority() {
        return Ok(Standing::Busy(Busy::default()));
    }
    // A member that is set up wrongly is for a person to mend, however many the others are.
    let wrong = errors.iter().find(|error| error.kind() == ErrorKind::InvalidConfig);
    Err(wrong.cloned().unwrap_or_else(|| shared.too_few(answered, &errors)))
}

/// The token of an attempt that a majority granted, with the counters of a majority lifted to it. `None` when fewer granted, or
/// fewer came to the token with the entry still there.
///
/// # Errors
/// When fewer than a majority can say: nobody is known to be ahead.
async fn fence(
    shared: &Arc<Shared>,
    request: &Arc<Request>,
    grants: &[Option<Grant>],
) -> Result<Option<FencingToken>> {
    if grants.iter().flatten().count() < shared.majority() {
        return Ok(None);
    }
    // Members may differ in whether their numbers carry the epoch: compared are tokens, and each is raised as it counts.
    let epoch = request.epoch;
    let Some(token) = grants.iter().flatten().map(|grant| epoch.shown(grant.token)).max() else {
        return Ok(None);
    };
    let at_token = |grant: &Option<Grant>| grant.is_some_and(|grant| epoch.shown(grant.token) == token);
    let there = grants.iter().filter(|grant| at_token(grant)).count();
    if !shared.capabilities.fencing || there >= shared.majority() {
        return Ok(Some(token));
    }
    let need = shared.majority() - there;
    // Only members that granted to this attempt, and each only while the entry is still this attempt's.
    let call = |i: usize, member: Arc<dyn Backend>| {
        let grant: Grant = grants[i].filter(|grant| !at_token(&Some(*grant)))?;
        let ticket = request.ticket().token(grant.token);
        let number = epoch.counted_like(token, grant.token);
        Some(async move { member.raise(&ticket, number).await })
    };
    let raised = |answers: &[Answer<Raise>]| count(answers, Raise::Raised) >= need;
    let answers = shared.ask(call, raised, |_, _| ()).await;
    let (answered, errors) = tally(&answers);
    if raised(&answers) {
        Ok(Some(token))
    } else if there + answered >= shared.majority() {
        Ok(None)
    } else {
        Err(shared.too_few(there + answered, &errors))
    }
}

/// Gives back what a failed attempt has or may have, and waits for it (within the members' time), so that the next
/// attempt does not meet this one.
async fn give_all_back(shared: &Arc<Shared>, request: &Request, answers: &[Answer<Standing>]) {
    // The late answer of the others is dealt with when it comes.
    let owed = |answer: &Answer<Standing>| answer.as_ref().is_some_and(may_have_joined);
    let entries: Vec<_> = answers.iter().map(|answer| owed(answer).then(|| request.ticket())).collect();
    shared.release(&entries, request.lease + request.delay, answers.len()).await;
}
