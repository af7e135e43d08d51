//! What people see: the entries of one attempt on several members, put together by their mark.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fanout::{count, tally};
use super::hold::GroupMark;
use super::shared::Shared;
use crate::backend::{Backend, Release};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::snapshot::{EntryView, Snapshot};
use crate::token::{FencingToken, TokenEpoch};

/// One attempt's entries, by member: one at least.
type Group = Vec<(usize, EntryView)>;

/// What the members that answered show.
struct Seen {
    groups: Vec<Group>,
    answered: usize,
    errors: Vec<Error>,
}

/// The entries that hold a majority, or may: a member that does not answer counts for each of them. The token shown is too small
/// while the member that gave it does not answer, and too large while a grant that came too late to count is being given back.
pub(super) async fn inspect(shared: &Arc<Shared>, name: &LockName) -> Result<Snapshot> {
    let seen = look(shared, name).await?;
    let holders = seen.groups.iter().filter_map(view).collect();
    Ok(Snapshot::new(name.clone(), holders, Vec::new()))
}

/// Evicts the hold that `inspect` shows with this token, on every member that has it.
pub(super) async fn evict(shared: &Arc<Shared>, name: &LockName, token: FencingToken) -> Result<Release> {
    let seen = look(shared, name).await?;
    let known = seen.answered == shared.members.len() || seen.groups.is_empty();
    let Some(group) =
        seen.groups.into_iter().find(|group| view(group).is_some_and(|shown| shown.token == token))
    else {
        // A member that does not answer may have given this token to an entry that is there.
        return if known { Ok(Release::NotHeld) } else { Err(shared.too_few(seen.answered, &seen.errors)) };
    };
    let call = |i: usize, member: Arc<dyn Backend>| {
        let number = group.iter().find(|(member, _)| *member == i)?.1.token;
        let name = name.clone();
        Some(async move { member.evict(&name, number).await })
    };
    let answers = shared.ask(call, |_| false, |_, _| ()).await;
    let (answered, errors) = tally(&answers);
    if count(&answers, Release::Released) > 0 && group.len() - answered < shared.majority() {
        Ok(Release::Released)
    } else if answered == group.len() {
        Ok(Release::NotHeld)
    } else {
        Err(shared.too_few(answered, &errors))
    }
}

/// Asks all members and waits for each in its time: each may be the one that gave the token.
async fn look(shared: &Arc<Shared>, name: &LockName) -> Result<Seen> {
    let call = |_, member: Arc<dyn Backend>| {
        let name = name.clone();
        Some(async move { member.inspect(&name).await })
    };
    let majority = shared.majority();
    let answers = shared.ask(call, |_| false, |_, _| ()).await;
    let (answered, errors) = tally(&answers);
    if answered < majority {
        return Err(shared.too_few(answered, &errors));
    }
    let silent = shared.members.len() - answered;
    let mut groups: BTreeMap<GroupMark, Group> = BTreeMap::new();
    for (member, answer) in answers.into_iter().enumerate() {
        let Some(Ok(snapshot)) = answer else { continue };
        for entry in snapshot.holders {
            // What has no mark was put there without the quorum.
            if let Some((mark, ..)) = GroupMark::read(&entry.note) {
                groups.entry(mark).or_default().push((member, entry));
            }
        }
    }
    let mut groups: Vec<_> = groups.into_values().filter(|group| group.len() + silent >= majority).collect();
    groups.sort_by_key(|group| view(group).map(|shown| shown.token));
    Ok(Seen { groups, answered, errors })
}

/// A group as one entry. An entry that joined late notes the token; without one it is the largest number.
fn view(group: &Group) -> Option<EntryView> {
    let noted = group.iter().find_map(|(_, entry)| GroupMark::read(&entry.note)?.2);
    // All numbers of a group are of one epoch, which some members' carry and others' do not.
    let epoch = group.iter().map(|(_, entry)| TokenEpoch::of(entry.token.get())).max()?;
    let mut shown = group.iter().max_by_key(|(_, entry)| epoch.shown(entry.token))?.1.clone();
    shown.token = noted.unwrap_or(epoch.shown(shown.token));
    shown.note = GroupMark::read(&shown.note).map_or_else(String::new, |(_, text, _)| text.to_owned());
    shown.age = group.iter().filter_map(|(_, entry)| entry.age).max();
    shown.expires_in = group.iter().filter_map(|(_, entry)| entry.expires_in).max();
    Some(shown)
}
