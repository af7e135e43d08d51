//! The lines of all names with the counter of their numbers: what a store decides, where its medium reads and writes the
//! whole. Pure: it knows no clock, no waiting and no I/O.
//!
//! Each verb of [`Backend`](crate::Backend) is a method that drops what has expired first. The memory store keeps one behind a
//! mutex; a store over a file reads one, calls a method and writes it back, as one step ([`store`](crate::store)). A store whose
//! medium has a row for each entry reads only the lines that its verbs are about, and writes the rows that differ.

use std::collections::BTreeMap;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::backend::{Raise, Release, Renewal, Renewed, Request, Standing, Ticket, Wake};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::holder::HolderId;
use crate::line::{Entry, Line};
use crate::name::LockName;
use crate::snapshot::{ListedName, Listing, Page, Snapshot};
use crate::token::{FencingToken, TokenEpoch};

/// How many more lines than twice those of the last time there are before all are looked through.
const SWEPT: usize = 64;

/// The state of a store, for serde.
///
/// ```
/// use std::time::Duration;
/// use onelock_core::toolkit::Lines;
/// use onelock_core::{HolderId, LockName, Mode, Release, Request, Standing, clock::Timestamp};
///
/// let (mut lines, now) = (Lines::default(), Timestamp::from_origin(Duration::from_secs(5)));
/// let name = LockName::new("orders/42")?;
/// let request = Request::new(name, HolderId::random()?, Mode::Exclusive, Duration::from_secs(30));
/// assert!(matches!(lines.acquire(now, &request)?, Standing::Held(_)));
/// let text = serde_json::to_string(&lines).unwrap();
/// let mut lines: Lines = serde_json::from_str(&text).unwrap();
/// assert_eq!(lines.release(now, &request.ticket()), Release::Released);
///
/// // Of a medium with rows: the last number given, and the rows of one name.
/// lines.acquire(now, &request)?;
/// let mut read = Lines::with_counter(lines.counter());
/// read.insert(request.name.clone(), lines.entries(&request.name).to_vec());
/// assert_eq!(read.release(now, &request.ticket()), Release::Released);
/// assert!(read.entries(&request.name).is_empty() && read.counter() == 2);
/// # Ok::<(), onelock_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Lines {
    counter: i64,
    lines: BTreeMap<LockName, Line>,
    #[serde(skip)]
    woken: Vec<HolderId>,
    /// How many lines there were when all were looked through last.
    #[serde(skip)]
    swept: usize,
}

impl Lines {
    /// No lines yet; the next number comes behind `counter`.
    #[must_use]
    pub fn with_counter(counter: i64) -> Self {
        Self { counter, ..Self::default() }
    }

    /// The last number given.
    #[must_use]
    pub fn counter(&self) -> i64 {
        self.counter
    }

    /// Adds the line of a name, in its order.
    pub fn insert(&mut self, name: LockName, entries: Vec<Entry>) {
        self.lines.insert(name, entries.into_iter().collect());
    }

    /// The line of a name, in its order.
    #[must_use]
    pub fn entries(&self, name: &LockName) -> &[Entry] {
        self.lines.get(name).map_or(&[], Line::entries)
    }

    /// [`Backend::acquire`](crate::Backend::acquire).
    ///
    /// # Errors
    /// `InvalidConfig` for a smaller epoch than one that has joined, `Full` when no number is left.
    pub fn acquire(&mut self, now: Timestamp, request: &Request) -> Result<Standing> {
        if self.lines.len() > 2 * self.swept + SWEPT {
            self.sweep(now);
        }
        self.with_line(now, &request.name, |line, counter| {
            let next = request.epoch.next(*counter)?;
            Ok(line.acquire(now, request, || {
                *counter = next.get();
                next
            }))
        })
    }

    /// How a wait ends now; `None` while it goes on.
    #[must_use]
    pub fn wake(&self, ticket: &Ticket) -> Option<Wake> {
        let line = self.lines.get(&ticket.name);
        let entry = line.and_then(|line| line.entries().iter().find(|e| e.holder == ticket.holder));
        match entry {
            Some(entry) if entry.held => Some(Wake::Held(entry.token)),
            Some(_) => None,
            None => Some(Wake::Ask),
        }
    }

    /// One item of [`Backend::renew`](crate::Backend::renew).
    pub fn renew(&mut self, now: Timestamp, renewal: &Renewal) -> Renewed {
        self.with_line(now, &renewal.ticket.name, |line, _| line.renew(now, renewal))
    }

    /// [`Backend::release`](crate::Backend::release).
    pub fn release(&mut self, now: Timestamp, ticket: &Ticket) -> Release {
        let was = self.with_line(now, &ticket.name, |line, _| line.remove(ticket.holder));
        if was { Release::Released } else { Release::NotHeld }
    }

    /// [`Backend::raise`](crate::Backend::raise).
    ///
    /// # Errors
    /// `InvalidConfig` for a number of a later epoch than the counter's.
    pub fn raise(&mut self, now: Timestamp, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        self.with_line(now, &ticket.name, |line, counter| {
            if !line.contains(ticket.holder) {
                return Ok(Raise::NotHeld);
            }
            // Only a client of that epoch may begin it.
            TokenEpoch::of(*counter).check_raise(token)?;
            *counter = (*counter).max(token.get());
            Ok(Raise::Raised)
        })
    }

    /// [`Backend::evict`](crate::Backend::evict).
    pub fn evict(&mut self, now: Timestamp, name: &LockName, token: FencingToken) -> Release {
        let holder =
            self.with_line(now, name, |line, _| line.by_token(token).filter(|holder| line.remove(*holder)));
        self.woken.extend(holder);
        if holder.is_some() { Release::Released } else { Release::NotHeld }
    }

    /// [`Backend::inspect`](crate::Backend::inspect).
    pub fn inspect(&mut self, now: Timestamp, name: &LockName) -> Snapshot {
        let (holders, waiters) = self.with_line(now, name, |line, _| line.view(now));
        Snapshot::new(name.clone(), holders, waiters)
    }

    /// [`Backend::list`](crate::Backend::list).
    ///
    /// # Errors
    /// `InvalidName` for a cursor that no page gave.
    pub fn list(&mut self, now: Timestamp, prefix: &str, page: &Page) -> Result<Listing> {
        let from = page.cursor.as_deref().map(|c| LockName::new(c).map(Bound::Excluded)).transpose()?;
        let from = match (from, LockName::new(prefix)) {
            (Some(from), _) => from,
            (None, Ok(prefix)) => Bound::Included(prefix),
            (None, Err(_)) => Bound::Unbounded,
        };
        let mut listing = Listing::default();
        for (name, line) in self.lines.range_mut((from, Bound::Unbounded)) {
            if !name.as_str().starts_with(prefix) {
                break;
            }
            line.settle(now, &mut self.woken);
            if line.is_empty() {
                continue;
            }
            if listing.names.len() == page.limit {
                listing.next = listing.names.last().map(|last: &ListedName| last.name.as_str().to_owned());
                break;
            }
            let holders = line.holders();
            let waiters = line.entries().len() - holders;
            listing.names.push(ListedName::new(name.clone(), holders, waiters));
        }
        Ok(listing)
    }

    /// Whose waits may have ended since this was asked last: for a store that notifies.
    pub fn take_woken(&mut self) -> Vec<HolderId> {
        std::mem::take(&mut self.woken)
    }

    /// The names that have an entry, living or not yet dropped.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &LockName> {
        self.lines.keys()
    }

    /// Forgets the lines whose entries have all expired: nobody may ask for those names again.
    fn sweep(&mut self, now: Timestamp) {
        self.lines.retain(|_, line| {
            line.settle(now, &mut self.woken);
            !line.is_empty()
        });
        self.swept = self.lines.len();
    }

    /// Settles the line of `name`, runs `step` on it, settles again and forgets an empty line.
    fn with_line<T>(
        &mut self,
        now: Timestamp,
        name: &LockName,
        step: impl FnOnce(&mut Line, &mut i64) -> T,
    ) -> T {
        let line = self.lines.entry(name.clone()).or_default();
        line.settle(now, &mut self.woken);
        let answer = step(line, &mut self.counter);
        line.settle(now, &mut self.woken);
        if line.is_empty() {
            self.lines.remove(name);
        }
        answer
    }
}
