//! Showing lines: one of them, and which there are.

use std::sync::Arc;

use etcd_client::GetOptions;
use etcd_client::proto::PbKeyValue;
use onelock_core::mode::holders;
use onelock_core::name::encode;
use onelock_core::{
    EntryView, Error, ErrorKind, FencingToken, ListedName, Listing, LockName, Note, Page, Result, Snapshot,
};

use crate::client::Cluster;
use crate::keys::{Entry, Keys};
use crate::line;

/// How many keys one request of a listing reads.
const LIST_CHUNK: i64 = 1_000;

pub(crate) async fn inspect(keys: &Keys, cluster: &Arc<Cluster>, name: &LockName) -> Result<Snapshot> {
    let span = keys.line(name);
    let line = span.entries(line::read(cluster, span.op(GetOptions::new())).await?.kvs);
    let count = holders(line.iter().map(|entry| entry.mode));
    let mut views = line.iter().map(view).collect::<Result<Vec<_>>>()?;
    let waiters = views.split_off(count);
    Ok(Snapshot::new(name.clone(), views, waiters))
}

pub(crate) async fn list(keys: &Keys, cluster: &Arc<Cluster>, prefix: &str, page: &Page) -> Result<Listing> {
    let mut span = keys.lines(&encode(prefix));
    if let Some(cursor) = &page.cursor {
        let known = LockName::decode(cursor).filter(|name| name.as_str().starts_with(prefix));
        known.ok_or_else(|| Error::new(ErrorKind::InvalidConfig, "this is no cursor of such a listing"))?;
        span.start = keys.after(cursor);
    }
    let mut lines: Vec<(LockName, Vec<PbKeyValue>)> = Vec::new();
    let mut listing = Listing::default();
    loop {
        // Keys in their own order: those of a name are beside each other.
        let options = GetOptions::new().with_limit(LIST_CHUNK).with_keys_only();
        let answer = line::read(cluster, span.op(options)).await?;
        if let Some(last) = answer.kvs.last() {
            span.start = [&last.key[..], &[0]].concat();
        }
        for kv in answer.kvs {
            // A key that no name is written as is not of a lock.
            let Some(name) = keys.encoded_name(&kv.key).and_then(LockName::decode) else { continue };
            match lines.last_mut() {
                Some((last, line)) if *last == name => line.push(kv),
                _ => lines.push((name, vec![kv])),
            }
        }
        if !answer.more || lines.len() > page.limit {
            break;
        }
    }
    if lines.len() > page.limit {
        lines.truncate(page.limit);
        listing.next = lines.last().map(|(last, _)| last.encoded().into_owned());
    }
    let counted = |(name, line)| {
        let line = keys.line(&name).entries(line);
        let holders = holders(line.iter().map(|entry| entry.mode));
        ListedName::new(name, holders, line.len() - holders)
    };
    listing.names = lines.into_iter().map(counted).collect();
    Ok(listing)
}

/// What people see of an entry. A value that is no note of ours is shown as far as it is text.
fn view(entry: &Entry) -> Result<EntryView> {
    let text = String::from_utf8_lossy(&entry.value);
    let note: String = text.chars().filter(|c| !c.is_control()).take(Note::MAX_BYTES).collect();
    Ok(EntryView::new(FencingToken::new(entry.number)?, entry.mode, note))
}
