//! Looking at lines. Only reads: an entry that holds by now is shown so, whether or not a verb has promoted it.

use onelock_core::line::Line;
use onelock_core::{Error, ErrorKind, ListedName, Listing, LockName, Page, Snapshot};

use super::error::Fault;
use super::keys;
use super::line::Transaction;

pub(super) fn inspect(tx: &mut Transaction<'_>, name: &LockName) -> Result<Snapshot, Fault> {
    let (holders, waiters) = line(tx, &name.encoded())?.view(tx.now);
    Ok(Snapshot::new(name.clone(), holders, waiters))
}

/// The cursor is the encoded name that the page before ended with.
pub(super) fn list(tx: &mut Transaction<'_>, prefix: &str, page: &Page) -> Result<Listing, Fault> {
    let (first, end) = keys::range(prefix);
    let limit = page.limit.clamp(1, Page::MAX);
    let count = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    let mut names = tx.database.sql.prepare_cached(include_str!("sql/list.sql"))?;
    let names =
        names.query_map((first, end, page.cursor.as_deref().unwrap_or(""), count), |row| row.get(0))?;
    let names: Vec<String> = names.collect::<Result<_, _>>()?;
    let mut listing = Listing::default();
    for encoded in names.iter().take(limit) {
        let line = line(tx, encoded)?;
        let (holders, waiters) = (line.holders(), line.entries().len() - line.holders());
        let name = LockName::decode(encoded)
            .ok_or_else(|| Error::new(ErrorKind::Foreign, "the file holds a name that is none"))?;
        listing.names.push(ListedName::new(name, holders, waiters));
    }
    listing.next = (names.len() > limit).then(|| names[limit - 1].clone());
    Ok(listing)
}

fn line(tx: &Transaction<'_>, name: &str) -> Result<Line, Fault> {
    let mut line: Line =
        tx.entries(include_str!("sql/inspect.sql"), (name,), |_| true)?.into_iter().collect();
    line.settle(tx.now, &mut Vec::new());
    Ok(line)
}
