//! Many names and lines at once: what `list`, `top` and `deadlocks` look at.

use onelock::{Error, ErrorKind, ListedName, Locks, Page, Snapshot};
use tokio::task::JoinSet;

/// How many names one request asks for.
const PAGE: usize = 500;

/// How many requests are under way at once.
const AT_ONCE: usize = 32;

/// Gives `each` the names in use that start with `prefix`, a page at a time.
pub(super) async fn pages<E: From<Error>>(
    locks: &Locks,
    prefix: &str,
    mut each: impl FnMut(Vec<ListedName>) -> Result<(), E>,
) -> Result<(), E> {
    let mut page = Page::first(PAGE)?;
    loop {
        let listing = locks.list(prefix, &page).await?;
        each(listing.names)?;
        match listing.next {
            Some(cursor) => page = page.after(cursor),
            None => return Ok(()),
        }
    }
}

/// The names in use that start with `prefix`.
pub(super) async fn names(locks: &Locks, prefix: &str) -> Result<Vec<ListedName>, Error> {
    let mut names = Vec::new();
    pages(locks, prefix, |page| {
        names.extend(page);
        Ok::<_, Error>(())
    })
    .await?;
    Ok(names)
}

/// Their lines, in no order. One that no retry makes legible does not hide the others.
pub(super) async fn lines(
    locks: &Locks,
    names: impl IntoIterator<Item = ListedName>,
) -> Result<Vec<(ListedName, Result<Snapshot, Error>)>, Error> {
    let (mut names, mut lines, mut tasks) = (names.into_iter(), Vec::new(), JoinSet::new());
    loop {
        while tasks.len() < AT_ONCE
            && let Some(listed) = names.next()
        {
            let locks = locks.clone();
            tasks.spawn(async move {
                let line = locks.inspect(&listed.name).await;
                (listed, line)
            });
        }
        match tasks.join_next().await {
            Some(read) => match read.map_err(|error| Error::new(ErrorKind::Closed, error.to_string()))? {
                (_, Err(error)) if error.is_retryable() => return Err(error),
                read => lines.push(read),
            },
            None => return Ok(lines),
        }
    }
}
