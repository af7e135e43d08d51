//! Many names and lines at once: what `list`, `top` and `deadlocks` look at.

use onelock::{Error, ErrorKind, ListedName, Locks, Page, Snapshot};
use tokio::task::JoinSet;

/// How many names one request asks for.
pub(super) const PAGE: usize = 500;

/// How many requests are under way at once.
const AT_ONCE: usize = 32;

/// The next page of the names in use that start with `prefix`, from [`Page::first`] on; none after the last.
pub(super) async fn page(
    locks: &Locks,
    prefix: &str,
    next: &mut Option<Page>,
) -> Result<Option<Vec<ListedName>>, Error> {
    let Some(page) = next.take() else { return Ok(None) };
    let listing = locks.list(prefix, &page).await?;
    *next = listing.next.map(|cursor| page.after(cursor));
    Ok(Some(listing.names))
}

/// The names in use that start with `prefix`.
pub(super) async fn names(locks: &Locks, prefix: &str) -> Result<Vec<ListedName>, Error> {
    let (mut names, mut next) = (Vec::new(), Some(Page::first(PAGE)?));
    while let Some(page) = page(locks, prefix, &mut next).await? {
        names.extend(page);
    }
    Ok(names)
}

/// A name whose line no retry makes legible, and why.
pub(super) type Illegible = (ListedName, Error);

/// Their lines, in no order, and those that cannot be read.
pub(super) async fn lines(
    locks: &Locks,
    names: impl IntoIterator<Item = ListedName>,
) -> Result<(Vec<Snapshot>, Vec<Illegible>), Error> {
    let (mut names, mut tasks) = (names.into_iter(), JoinSet::new());
    let (mut lines, mut illegible) = (Vec::new(), Vec::new());
    loop {
        while tasks.len() < AT_ONCE
            && let Some(listed) = names.next()
        {
            let locks = locks.clone();
            tasks.spawn(async move { (locks.inspect(&listed.name).await, listed) });
        }
        match tasks.join_next().await {
            Some(read) => match read.map_err(|error| Error::new(ErrorKind::Closed, error.to_string()))? {
                (Ok(line), _) => lines.push(line),
                (Err(error), _) if error.is_retryable() => return Err(error),
                (Err(error), listed) => illegible.push((listed, error)),
            },
            None => return Ok((lines, illegible)),
        }
    }
}
