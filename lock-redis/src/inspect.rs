//! Inspects one name, and lists names.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::toolkit::Mutex;
use onelock_core::{Error, ErrorKind, ListedName, Listing, LockName, Page, Result, Snapshot};

use crate::keys::{Keys, glob, name_of};
use crate::topology::Servers;
use crate::{reply, scripts};

pub(crate) async fn inspect(servers: &Arc<Servers>, keys: &Keys, name: &LockName) -> Result<Snapshot> {
    let (line, script) = (keys.of(name), keys.verbs().inspect);
    let command = script.call(&line.line());
    reply::snapshot(servers.call(line.slot(), script, &command).await?.value()?, name)
}

/// What was found by the listing that began last, and with what its names start: so that the server is scanned once for all
/// pages. Without it the next page is as good, and costs another scan.
pub(crate) type Found = Mutex<Option<(String, BTreeSet<LockName>)>>;

/// What a cursor starts with; the last name that was shown follows.
const AFTER: &str = "after:";

/// One page of the names that start with `names`, in their order.
pub(crate) async fn list(
    servers: &Arc<Servers>,
    keys: &Keys,
    found: &Found,
    names: &str,
    page: &Page,
) -> Result<Listing> {
    let bad = || Error::new(ErrorKind::InvalidConfig, "this is not the cursor of a listing");
    let last = |cursor: &String| {
        cursor.strip_prefix(AFTER).and_then(|name| LockName::new(name).ok()).ok_or_else(bad)
    };
    let last = page.cursor.as_ref().map(last).transpose()?;
    let limit = page.limit.clamp(1, Page::MAX);
    let known = found.lock().take().filter(|(start, _)| last.is_some() && start == names);
    let all = match known {
        Some((_, all)) => all,
        None => scan(servers, &keys.prefix, names).await?,
    };
    let from = last.map_or(Bound::Unbounded, Bound::Excluded);
    let shown: Vec<_> = all.range((from, Bound::Unbounded)).take(limit).cloned().collect();
    let next = shown.last().filter(|last| all.last() != Some(last)).map(|last| format!("{AFTER}{last}"));
    if next.is_some() {
        *found.lock() = Some((names.to_owned(), all));
    }
    Ok(Listing::new(counted(servers, keys, shown).await?, next))
}

/// All names that start with `names`. A scan may show a key twice while the server's table grows or shrinks.
async fn scan(servers: &Arc<Servers>, prefix: &str, names: &str) -> Result<BTreeSet<LockName>> {
    let mut found = BTreeSet::new();
    for (server, _) in servers.all().await? {
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(glob(prefix, names)).arg("COUNT").arg(1000);
            let (next, keys): (u64, Vec<Vec<u8>>) = server.query(&scan).await?;
            found.extend(keys.iter().filter_map(|key| name_of(prefix, key)));
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
    }
    Ok(found)
}

/// Counts each line; one with no living entry, or that is not ours, is left out.
async fn counted(servers: &Arc<Servers>, keys: &Keys, names: Vec<LockName>) -> Result<Vec<ListedName>> {
    let lines: Vec<_> = names.iter().map(|name| keys.of(name)).collect();
    let mut counts = vec![(0, 0); names.len()];
    for (batch, answer) in servers.call_lines(&scripts::COUNT, &lines, None, |_, _| {}, Duration::MAX).await {
        let batch_counts: Vec<(usize, usize)> = reply::read(answer?.value()?)?;
        batch.into_iter().zip(batch_counts).for_each(|(i, count)| counts[i] = count);
    }
    let living = names.into_iter().zip(counts).filter(|(_, count)| *count != (0, 0));
    Ok(living.map(|(name, (holders, waiters))| ListedName::new(name, holders, waiters)).collect())
}
