//! Looking: the line of a name for people, and the list of names.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use onelock_core::name::encode;
use onelock_core::{
    EntryView, ErrorKind, FencingToken, ListedName, Listing, LockName, Page, Result, Snapshot, mode,
};

use crate::keys;
use crate::line::{Line, Read};
use crate::sessions::Sessions;

/// The line of a name, for people.
pub(crate) async fn inspect(sessions: &Arc<Sessions>, name: &LockName) -> Result<Snapshot> {
    let (line, desk) = Line::of_name(sessions, name).await?;
    let nodes = line.nodes(&desk).await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut views = Vec::with_capacity(nodes.len());
    for Read { entry, data, stat } in &nodes {
        // By two wall clocks: for people, not for decisions.
        let born = Duration::from_millis(u64::try_from(stat.ctime).unwrap_or(0));
        let view = EntryView::new(FencingToken::new(stat.czxid)?, entry.mode, keys::note(data));
        views.push(view.age(now.saturating_sub(born)));
    }
    let waiters = views.split_off(mode::holders(nodes.iter().map(|node| node.entry.mode)));
    Ok(Snapshot::new(name.clone(), views, waiters))
}

/// Names with entries, in the order of their encoded form.
pub(crate) async fn list(sessions: &Arc<Sessions>, prefix: &str, page: &Page) -> Result<Listing> {
    let desk = sessions.desk().await?;
    // The lines are read behind it.
    let (mut names, _) = desk.latest_children(desk.servers.root()).await?;
    let (prefix, cursor) = (encode(prefix), page.cursor.as_deref().map(encode));
    names.retain(|name| name.starts_with(&*prefix) && cursor.as_ref().is_none_or(|cursor| **name > **cursor));
    names.sort_unstable();
    let mut names: Vec<_> = names.iter().filter_map(|encoded| LockName::decode(encoded)).collect();
    let more = names.len() > page.limit;
    names.truncate(page.limit);
    let parents: Vec<_> = names.iter().map(|name| keys::parent(&sessions.servers.base, name)).collect();
    let lines = parents.iter().map(|parent| Line::read(&desk, parent));
    let mut listing = Listing::default();
    for (name, line) in names.iter().zip(join_all(lines).await) {
        // What is not a lock, or not for this user to see, is no name of ours.
        let line = match line {
            Ok(line) => line,
            Err(error) if matches!(error.kind(), ErrorKind::Foreign | ErrorKind::Denied) => continue,
            Err(error) => return Err(error),
        };
        let (holders, all) = (line.holders(), line.entries.len());
        if all > 0 {
            listing.names.push(ListedName::new(name.clone(), holders, all - holders));
        }
    }
    // The last name that was looked at, though it may have had no entry.
    listing.next = names.last().filter(|_| more).map(|last| last.as_str().to_owned());
    Ok(listing)
}
