//! Looking at one line, and at the names that have one.

use onelock_core::{EntryView, Listing, LockName, Mode, Note, Page, Result, Snapshot};

use super::line::Cells;
use super::pool::{Answer, Client};
use super::sql::Value;
use crate::listing::{foreign, listing, range};
use crate::pool::Lane;
use crate::value::{duration, snapshot};

pub(super) async fn inspect(client: &Client, name: &LockName) -> Result<Snapshot> {
    let sql = client.sql.inspect.fill(&[("name", Value::Bytes(name.encoded().as_bytes()))]);
    let read = |answer: &Answer| answer.rows.iter().map(Cells).map(view).collect::<Result<Vec<_>>>();
    Ok(snapshot(name, client.verbs.ask(Lane::Verb, &sql, read).await?))
}

fn view(row: Cells<'_>) -> Result<EntryView> {
    let note = Note::new(row.text(2)?).map_err(|_| foreign("a malformed note"))?;
    let view = EntryView::new(row.token(0)?, row.text(1)?.parse()?, note.as_str());
    Ok(view.age(duration(row.int(3)?)).expires_in(duration(row.int(4)?)))
}

pub(super) async fn list(client: &Client, prefix: &str, page: &Page) -> Result<Listing> {
    let limit = page.limit.clamp(1, Page::MAX);
    let (from, until) = range(prefix);
    let sql = client.sql.list.fill(&[
        ("from", Value::Bytes(from.as_bytes())),
        ("until", Value::Bytes(until.as_bytes())),
        ("after", Value::Bytes(page.cursor.as_deref().unwrap_or_default().as_bytes())),
        ("limit", Value::Int(i64::try_from(limit).unwrap_or(1) + 1)),
    ]);
    listing(client.verbs.ask(Lane::Verb, &sql, lines).await?, limit)
}

/// The modes of each name, which stand together.
fn lines(answer: &Answer) -> Result<Vec<(String, Vec<Mode>)>> {
    let mut lines: Vec<(String, Vec<Mode>)> = Vec::new();
    for row in answer.rows.iter().map(Cells) {
        let (name, mode) = (row.text(0)?, row.text(1)?.parse()?);
        match lines.last_mut() {
            Some((last, modes)) if *last == name => modes.push(mode),
            _ => lines.push((name, vec![mode])),
        }
    }
    Ok(lines)
}
