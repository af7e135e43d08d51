//! Looking at lines: one of them, and which there are.

use std::sync::Arc;

use etcd_client::proto::PbKeyValue;
use etcd_client::{Client, GetOptions};
use onelock_core::mode::holders;
use onelock_core::name::{check_prefix, encode};
use onelock_core::{
    EntryView, Error, ErrorKind, FencingToken, ListedName, Listing, LockName, Mode, Note, Page, Result,
    Snapshot,
};

use crate::backend::Shared;
use crate::error::protocol;
use crate::keys::{Seat, Span};
use crate::lines::{kv, read_values};

/// How many keys one request of a listing reads.
const LIST_CHUNK: i64 = 1_000;

impl Shared {
    pub(crate) async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let line = read_values(&self.members, &self.keys.line(name)).await?.line;
        let count = holders(line.iter().map(|seat| seat.mode));
        let mut views = line.iter().map(view).collect::<Result<Vec<_>>>()?;
        let waiters = views.split_off(count);
        Ok(Snapshot { holders: views, waiters, ..Snapshot::empty(name.clone()) })
    }

    pub(crate) async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        check_prefix(prefix)?;
        let Span { mut start, end } = self.keys.lines(&encode(prefix));
        if let Some(cursor) = &page.cursor {
            let known = LockName::decode(cursor).filter(|name| name.as_str().starts_with(prefix));
            known
                .ok_or_else(|| Error::new(ErrorKind::InvalidConfig, "this is no cursor of such a listing"))?;
            start = self.keys.after(cursor);
        }
        let mut listing = Listing::default();
        let mut line = Vec::new();
        let mut current: Option<(String, LockName)> = None;
        loop {
            let span = Span { start: start.clone(), end: end.clone() };
            let (keys, more) = self.keys_of(&span).await?;
            if let Some(last) = keys.last() {
                start = [&last.key[..], &[0]].concat();
            }
            for seat in keys {
                let Some(encoded) = self.keys.encoded_name(&seat.key) else { continue };
                if current.as_ref().is_none_or(|(now, _)| now != encoded) {
                    finish(&mut listing, current.take(), &mut line);
                    // A key that no name is written as is not of a lock.
                    let Some(name) = LockName::decode(encoded) else { continue };
                    if listing.names.len() == page.limit {
                        listing.next = listing.names.last().map(|last| last.name.encoded().into_owned());
                        return Ok(listing);
                    }
                    current = Some((encoded.to_owned(), name));
                }
                line.push(seat);
            }
            if !more {
                finish(&mut listing, current, &mut line);
                return Ok(listing);
            }
        }
    }

    /// The first keys of a span in their own order, and whether there are more.
    async fn keys_of(&self, span: &Span) -> Result<(Vec<Seat>, bool)> {
        let options = GetOptions::new().with_range(span.end.clone()).with_limit(LIST_CHUNK).with_keys_only();
        let call = |client: Arc<Client>| {
            let (start, options) = (span.start.clone(), options.clone());
            async move { kv(&client).get(start, Some(options)).await }
        };
        let answer = self.members.request(call).await?.0;
        let seat = |kv: PbKeyValue| {
            let line =
                self.keys.encoded_name(&kv.key).and_then(LockName::decode).map(|name| self.keys.line(&name));
            let mode = line.map_or(Mode::Exclusive, |line| line.mode_of(&kv.key));
            Seat { number: kv.create_revision, key: kv.key, mode, lease: kv.lease, value: kv.value }
        };
        Ok((answer.kvs.into_iter().map(seat).collect(), answer.more))
    }
}

/// Adds a name whose keys have all been read.
fn finish(listing: &mut Listing, name: Option<(String, LockName)>, line: &mut Vec<Seat>) {
    let mut line = std::mem::take(line);
    let Some((_, name)) = name else { return };
    line.sort_by(|a, b| a.place().cmp(&b.place()));
    let holders = holders(line.iter().map(|seat| seat.mode));
    listing.names.push(ListedName { name, holders, waiters: line.len() - holders });
}

/// What people see of an entry. A value that is no note of ours is shown as far as it is text.
fn view(seat: &Seat) -> Result<EntryView> {
    let text = String::from_utf8_lossy(&seat.value);
    let note: String = text.chars().filter(|c| !c.is_control()).take(Note::MAX_BYTES / 4).collect();
    let note = if Note::new(&text).is_ok() { text.into_owned() } else { note };
    let token = FencingToken::new(seat.number).map_err(|_| protocol("etcd gave a key without a revision"))?;
    Ok(EntryView { token, mode: seat.mode, note, age: None, expires_in: None })
}
