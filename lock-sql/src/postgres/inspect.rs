//! Inspecting a line, and listing the names in use.

use onelock_core::{Listing, LockName, Page, Result, Snapshot};
use sqlx::postgres::PgRow;

use super::backend::PostgresBackend;
use super::call::{Call, Value};
use super::line::{read_listed, read_view};
use super::pool::Again;

impl PostgresBackend {
    pub(super) async fn line(&self, name: &LockName) -> Result<Snapshot> {
        let call = Call::new(&self.shared.sql.inspect, vec![Value::Text(name.encoded().into_owned())]);
        let read = |rows: &[PgRow]| rows.iter().map(read_view).collect::<Result<Vec<_>>>();
        let mut holders = self.fetch(Again::Yes, call, read).await?;
        let waiters = holders.split_off(onelock_core::mode::holders(holders.iter().map(|view| view.mode)));
        Ok(Snapshot::new(name.clone(), holders, waiters))
    }

    pub(super) async fn names(&self, prefix: &str, page: &Page) -> Result<Listing> {
        let limit = page.limit.clamp(1, Page::MAX);
        let first = onelock_core::name::encode(prefix);
        // Encoded names are of ASCII below 0x7F, so this is just behind all that begin with `first`.
        let end = format!("{first}\u{7F}");
        let after = page.cursor.clone().unwrap_or_default();
        let more = i32::try_from(limit).unwrap_or(i32::MAX - 1) + 1;
        let values =
            vec![Value::Text(first.into_owned()), Value::Text(end), Value::Text(after), Value::Int(more)];
        let read = |rows: &[PgRow]| {
            let names = rows.iter().take(limit).map(read_listed).collect::<Result<Vec<_>>>()?;
            Ok((names, rows.len() > limit))
        };
        let call = Call::new(&self.shared.sql.list, values);
        let (names, more) = self.fetch(Again::Yes, call, read).await?;
        let next = if more { names.last().map(|listed| listed.name.encoded().into_owned()) } else { None };
        Ok(Listing::new(names, next))
    }
}
