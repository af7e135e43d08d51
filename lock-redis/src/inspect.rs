//! Inspects one name, and lists names.
//!
//! A scan of Redis may show a key twice while its table grows or shrinks, so the client
//! remembers for each walk what it has shown; and it may show more keys than asked for, which wait for the next page.
//! The nodes of a cluster are walked one after the other, in the order of their addresses.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Mutex;

use onelock_core::{Error, ErrorKind, ListedName, Listing, LockName, Page, Result, Snapshot};

use crate::connection::Connection;
use crate::keys::{Keys, glob, name_of};
use crate::topology::Servers;
use crate::wait::lock;
use crate::{renew, reply, scripts};

pub(crate) async fn inspect(servers: &Servers, keys: &Keys, name: &LockName) -> Result<Snapshot> {
    let line = keys.of(name);
    let mut command = scripts::INSPECT.call(4);
    command.arg(&line.line());
    reply::snapshot(&servers.call(line.slot(), &scripts::INSPECT, command).await?.value()?, name)
}

/// How many walks a client remembers. The page of an older one is still given; only a name may then come twice.
const WALKS: usize = 16;
/// How many scans one page may take, so that a page of a large database ends in a bounded time.
const SCANS: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Walks {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: BTreeMap<u64, Walk>,
}

#[derive(Debug)]
struct Walk {
    id: u64,
    /// What every name of this walk starts with: a cursor cannot be used for another.
    names: String,
    /// Where the scan goes on: which server, and its cursor there; `None` at its end.
    scan: Option<(usize, u64)>,
    seen: HashSet<LockName>,
    /// Found, not yet shown.
    found: VecDeque<LockName>,
}

impl Walks {
    /// A cursor is the number of the walk, and the server and its scan cursor by which it can be taken up without that.
    fn begin(&self, names: &str, cursor: Option<&str>) -> Result<Walk> {
        let mut state = lock(&self.state);
        let mut scan = (0, 0);
        if let Some(cursor) = cursor {
            let bad = || Error::new(ErrorKind::InvalidConfig, "this is not the cursor of a listing");
            let mut parts = cursor.split('.');
            let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok()).ok_or_else(bad);
            let (id, server, from) = (number()?, number()?, number()?);
            scan = (usize::try_from(server).map_err(|_| bad())?, from);
            if let Some(walk) = state.open.remove(&id).filter(|walk| walk.names == names) {
                return Ok(walk);
            }
        }
        state.next += 1;
        let (seen, found) = (HashSet::new(), VecDeque::new());
        Ok(Walk { id: state.next, names: names.to_owned(), scan: Some(scan), seen, found })
    }

    fn keep(&self, walk: Walk) {
        let mut state = lock(&self.state);
        if state.open.len() >= WALKS {
            state.open.pop_first();
        }
        state.open.insert(walk.id, walk);
    }
}

/// One page of the names that start with `names`.
pub(crate) async fn list(
    servers: &Servers,
    keys: &Keys,
    walks: &Walks,
    names: &str,
    page: &Page,
) -> Result<Listing> {
    let limit = page.limit.clamp(1, Page::MAX);
    let mut walk = walks.begin(names, page.cursor.as_deref())?;
    let from = walk.scan.unwrap_or_default();
    let all = servers.all().await?;
    let mut scans = 0;
    while walk.found.len() < limit && scans < SCANS {
        let Some((server, cursor)) = walk.scan else { break };
        let Some((connection, _)) = all.get(server) else {
            walk.scan = None;
            break;
        };
        walk.step(&keys.prefix, connection, server, cursor, limit).await?;
        scans += 1;
    }
    let shown: Vec<_> = walk.found.drain(..limit.min(walk.found.len())).collect();
    let names = counted(servers, keys, shown).await?;
    let more = walk.scan.is_some() || !walk.found.is_empty();
    // Were the walk forgotten, names found and not shown would be found again from where this page began.
    let next = more.then(|| {
        let (server, cursor) = if walk.found.is_empty() { walk.scan.unwrap_or_default() } else { from };
        format!("{}.{server}.{cursor}", walk.id)
    });
    if more {
        walks.keep(walk);
    }
    Ok(Listing::new(names, next))
}

impl Walk {
    async fn step(
        &mut self,
        prefix: &str,
        connection: &Connection,
        server: usize,
        cursor: u64,
        limit: usize,
    ) -> Result<()> {
        let (cursor, count) = (cursor.to_string(), limit.clamp(100, 1000).to_string());
        let scan = ["SCAN", &cursor, "MATCH", &glob(prefix, &self.names), "COUNT", &count];
        let [answer] = connection.commands([&scan]).await?;
        let (next, keys) = reply::scan(&answer)?;
        for key in keys {
            if let Some(name) = name_of(prefix, reply::bytes(key)?)
                && self.seen.insert(name.clone())
            {
                self.found.push_back(name);
            }
        }
        self.scan = Some(if next == 0 { (server + 1, 0) } else { (server, next) });
        Ok(())
    }
}

/// Counts each line; one with no living entry, or that is not ours, is left out.
async fn counted(servers: &Servers, keys: &Keys, names: Vec<LockName>) -> Result<Vec<ListedName>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let lines: Vec<_> = names.iter().map(|name| keys.of(name)).collect();
    let batches = renew::batches(servers, lines.iter().map(|line| line.bucket));
    let calls = batches.iter().map(|(slot, batch)| {
        let mut command = scripts::COUNT.call(4 * batch.len());
        batch.iter().for_each(|i| {
            command.arg(&lines[*i].line());
        });
        (*slot, command)
    });
    let answers = servers.call_all(&scripts::COUNT, &calls.collect::<Vec<_>>()).await;
    let mut counts = vec![None; names.len()];
    for ((_, batch), answer) in batches.iter().zip(answers) {
        for (i, count) in batch.iter().zip(reply::counts(&answer?.value()?, batch.len())?) {
            counts[*i] = count;
        }
    }
    let living = |(name, count): (LockName, Option<(usize, usize)>)| {
        let (holders, waiters) = count.filter(|(h, w)| h + w > 0)?;
        Some(ListedName::new(name, holders, waiters))
    };
    Ok(names.into_iter().zip(counts).filter_map(living).collect())
}
