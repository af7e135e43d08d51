//! Names that nobody uses any more. Their rows go, so that a million names leave no more than a few; their numbers are
//! not lost, because the floor is raised above them in the same transaction.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use onelock_core::Result;
use tokio::time::Instant;

use super::link::{Lane, Link};
use super::rows;
use super::sql::Value;

/// How many idle names a client lets stand, and how many one request retires. A name that is used again before keeps
/// its row, which is cheaper than a new one.
const MANY: usize = 256;
/// How long a name stands idle before it goes, and how often the store is cleared of what others left.
pub(super) const QUIET: Duration = Duration::from_secs(5);
/// In one of so many rounds names are searched for idle ones: a page of them, and more while most of a page is idle.
const SEARCH: u32 = 24;
const PAGES: u32 = 64;

/// The names that this client has left, perhaps empty.
#[derive(Debug, Default)]
pub(super) struct Idle {
    names: Mutex<HashMap<String, Instant>>,
}

impl Idle {
    /// `name` is used. Whether it was left not long ago, so that it should have its row yet.
    pub(super) fn used(&self, name: &str) -> bool {
        self.lock().remove(name).is_some()
    }

    /// An entry of `name` was given back; its line may be empty. Gives the names to retire when there are many.
    pub(super) fn left(&self, name: String) -> Option<Vec<String>> {
        let mut names = self.lock();
        names.insert(name, Instant::now());
        (names.len() >= MANY).then(|| names.drain().map(|(name, _)| name).collect())
    }

    /// The names that have been idle for this long.
    fn quiet(&self, quiet: Duration) -> Vec<String> {
        let mut names = self.lock();
        names.extract_if(|_, since| since.elapsed() >= quiet).map(|(name, _)| name).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Retires these names as far as nobody uses them now.
pub(super) async fn retire(link: &Link, names: &[String]) -> Result<()> {
    for names in names.chunks(MANY) {
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let sql = link.sql.retire.fill(&[("names", Value::List(&names))]);
        link.request(Lane::Tidy, &sql).await?;
    }
    Ok(())
}

/// Retires what this client has left for that long, where it is empty.
pub(super) async fn retire_quiet(link: &Link, idle: &Idle, quiet: Duration) -> Result<()> {
    let names = idle.quiet(quiet);
    retire(link, &names).await
}

/// Drops the entries that have expired, of whatever client.
async fn clear_expired(link: &Link) -> Result<()> {
    let query = link.sql.expired.fill(&[("limit", Value::Int(MANY as i64))]);
    loop {
        let names = link.ask(Lane::Tidy, &query, |rows, _| rows::names(rows)).await?;
        retire(link, &names).await?;
        if names.len() < MANY {
            return Ok(());
        }
    }
}

/// Retires the idle ones among the names after `cursor`, as many as one request sees, and moves it on. Whether they were most.
async fn search(link: &Link, cursor: &mut String) -> Result<bool> {
    let values = [("after", Value::Bytes(cursor.as_bytes())), ("limit", Value::Int(MANY as i64))];
    let seen = link.ask(Lane::Tidy, &link.sql.idle.fill(&values), |rows, _| rows::uses(rows)).await?;
    // After the last the search begins again.
    *cursor = seen.last().filter(|_| seen.len() == MANY).map(|(name, _)| name.clone()).unwrap_or_default();
    let idle: Vec<_> = seen.into_iter().filter(|(_, used)| !used).map(|(name, _)| name).collect();
    retire(link, &idle).await?;
    Ok(idle.len() > MANY / 2)
}

/// Tidies for as long as the client lives. A few small requests every few seconds, however many names there are.
pub(super) async fn keep_tidy(link: Weak<Link>, idle: Weak<Idle>) {
    let (mut round, mut cursor) = (0_u32, String::new());
    loop {
        tokio::time::sleep(QUIET).await;
        let (Some(link), Some(idle)) = (link.upgrade(), idle.upgrade()) else { return };
        if link.open().is_err() {
            return;
        }
        // What fails is found again in a later round, by this client or another.
        let _ = retire_quiet(&link, &idle, QUIET).await;
        let _ = clear_expired(&link).await;
        if round.is_multiple_of(SEARCH) {
            for _ in 0..PAGES {
                if !search(&link, &mut cursor).await.unwrap_or(false) {
                    break;
                }
            }
        }
        round = round.wrapping_add(1);
    }
}

/// Retires in the background.
pub(super) fn retire_later(link: &Arc<Link>, names: Vec<String>) {
    let link = Arc::clone(link);
    tokio::spawn(async move {
        // What fails is found by a later search for idle names.
        let _ = retire(&link, &names).await;
    });
}
