//! Walks through the names. A scan of Redis may show a key twice while its table grows or shrinks, so the client
//! remembers for each walk what it has shown; and it may show more keys than asked for, which wait for the next page.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Mutex;

use lock_core::{Error, ErrorKind, ListedName, Listing, LockName, Page, Result};
use redis::Cmd;

use crate::backend::RedisBackend;
use crate::inbox::lock;
use crate::keys::{LineKeys, glob, name_of};
use crate::{reply, scripts};

/// How many walks a client remembers. The page of an older one is still given; only a name may then come twice.
const WALKS: usize = 16;
/// How many scans one page may take, so that a page of a large database ends in a bounded time.
const SCANS: usize = 16;
/// How many lines one script counts.
const CHUNK: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Walks {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: HashMap<u64, Walk>,
}

#[derive(Debug)]
struct Walk {
    id: u64,
    /// What every name of this walk starts with: a cursor cannot be used for another.
    names: String,
    /// Where the scan goes on; `None` at its end.
    scan: Option<u64>,
    seen: HashSet<LockName>,
    /// Found, not yet shown.
    found: VecDeque<LockName>,
}

impl Walks {
    /// A cursor is the number of the walk and the scan cursor by which the walk can be taken up without it.
    fn begin(&self, names: &str, cursor: Option<&str>) -> Result<Walk> {
        let mut state = lock(&self.state);
        let mut scan = 0;
        if let Some(cursor) = cursor {
            let bad = || Error::new(ErrorKind::InvalidConfig, "this is not the cursor of a listing");
            let (id, from) = cursor.split_once('.').ok_or_else(bad)?;
            let id: u64 = id.parse().map_err(|_| bad())?;
            scan = from.parse().map_err(|_| bad())?;
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
        if state.open.len() >= WALKS
            && let Some(oldest) = state.open.keys().min().copied()
        {
            state.open.remove(&oldest);
        }
        state.open.insert(walk.id, walk);
    }
}

pub(crate) async fn page(backend: &RedisBackend, names: &str, page: &Page) -> Result<Listing> {
    lock_core::name::check_prefix(names)?;
    let limit = page.limit.clamp(1, Page::MAX);
    let mut walk = backend.walks.begin(names, page.cursor.as_deref())?;
    let from = walk.scan.unwrap_or(0);
    let mut scans = 0;
    while walk.found.len() < limit && scans < SCANS {
        let Some(cursor) = walk.scan else { break };
        walk.step(backend, cursor, limit).await?;
        scans += 1;
    }
    let shown: Vec<_> = walk.found.drain(..limit.min(walk.found.len())).collect();
    let names = counted(backend, shown).await?;
    let more = walk.scan.is_some() || !walk.found.is_empty();
    // Were the walk forgotten, names found and not shown would be found again from where this page began.
    let next = more.then(|| {
        format!("{}.{}", walk.id, if walk.found.is_empty() { walk.scan.unwrap_or(0) } else { from })
    });
    if more {
        backend.walks.keep(walk);
    }
    Ok(Listing { names, next })
}

impl Walk {
    async fn step(&mut self, backend: &RedisBackend, cursor: u64, limit: usize) -> Result<()> {
        let mut command = Cmd::new();
        command.arg("SCAN").arg(cursor).arg("MATCH").arg(glob(backend.prefix(), &self.names));
        command.arg("COUNT").arg(limit.clamp(100, 1000));
        let answer = backend.link.command(&command).await?;
        let (next, keys) = reply::scan(&answer)?;
        for key in keys {
            if let Some(name) = name_of(backend.prefix(), reply::bytes(key)?)
                && self.seen.insert(name.clone())
            {
                self.found.push_back(name);
            }
        }
        self.scan = (next != 0).then_some(next);
        Ok(())
    }
}

/// Counts each line; one with no living entry, or that is not ours, is left out.
async fn counted(backend: &RedisBackend, names: Vec<LockName>) -> Result<Vec<ListedName>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let chunks: Vec<_> = names.chunks(CHUNK).collect();
    let calls = chunks.iter().map(|chunk| {
        let mut command = scripts::COUNT.call(4 * chunk.len());
        for name in *chunk {
            command.arg(&LineKeys::new(backend.prefix(), name).line);
        }
        command
    });
    let answers = backend.link.call_all(&scripts::COUNT, calls.collect()).await?;
    let mut listed = Vec::with_capacity(names.len());
    for (chunk, answer) in chunks.iter().zip(answers) {
        let counts = reply::counts(&answer?, chunk.len())?;
        for (name, count) in chunk.iter().zip(counts) {
            if let Some((holders, waiters)) = count.filter(|(h, w)| h + w > 0) {
                listed.push(ListedName { name: name.clone(), holders, waiters });
            }
        }
    }
    Ok(listed)
}
