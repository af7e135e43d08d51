//! Leaving a line: the release, and the eviction; and who is told.

use std::borrow::Cow;
use std::sync::Arc;

use onelock_core::{Error, ErrorKind, FencingToken, HolderId, LockName, Release, Result, Ticket, Wake};
use sqlx::mysql::MySqlRow;

use super::link::Lane;
use super::sql::{self, Value};
use super::{MySqlBackend, idle, rows};

impl MySqlBackend {
    /// Gives an entry back by its number, where that is known. Whether it was there, and whether that was asked twice.
    async fn try_leave(&self, ticket: &Ticket, holder: Value<'_>) -> Result<(bool, bool)> {
        let Some(token) = ticket.token else { return Ok((false, false)) };
        let (name, sql) = (ticket.name.encoded(), &self.link.sql);
        let (after, next) = self.watch.after(&self.link, &name);
        let bell = self.watch.bells.take(&self.link.space, &name, token);
        let ring = bell.as_deref().map(|own| sql.ring.fill(&[("own", Value::Text(own))]));
        // Where somebody waits on that connection the bell is rung when it is free.
        let now = bell.as_deref().filter(|_| self.link.looks_idle());
        let lane = if now.is_some() { Lane::Ring } else { Lane::Verb };
        let values = [
            ("name", Value::Bytes(name.as_bytes())),
            ("number", Value::Int(token.get())),
            ("holder", holder),
            ("own", Value::Text(now.unwrap_or_default())),
            ("after", Value::Part(&after)),
            ("ring", Value::Part(ring.as_deref().filter(|_| now.is_some()).unwrap_or_default())),
        ];
        let answer = if next.is_none() {
            let request = match now {
                Some(_) => (&self.link.leave_ring, &sql.leave_ring),
                None => (&self.link.leave, &sql.leave),
            };
            let answer = self.link.change(lane, request, &values).await;
            answer.map(|(gone, again)| ((gone > 0, false), again))
        } else {
            let read = |rows: &[MySqlRow], again| Ok((rows::gone(rows)?, again));
            self.link.ask(lane, &sql.leave_on.fill(&values), read).await
        };
        // It is rung with an entry that is there; a connection on which something failed takes it along.
        let rung = now.is_some() && answer.as_ref().map_or(true, |((gone, _), _)| *gone);
        self.ring(ring.filter(|_| !rung));
        let ((gone, holds), again) = answer?;
        if let Some(next) = next.filter(|_| holds) {
            self.watch.wake(&name, next, Wake::Held(next));
        }
        if gone {
            self.left(name);
        }
        Ok((gone, again))
    }

    /// Rings on the side.
    fn ring(&self, ring: Option<String>) {
        if let Some(ring) = ring {
            let link = Arc::clone(&self.link);
            // Where it fails the connection has most likely ended, and the bell with it.
            tokio::spawn(async move { link.request(Lane::Ring, &ring).await });
        }
    }

    pub(super) async fn try_release(&self, ticket: &Ticket) -> Result<Release> {
        let holder = ticket.holder.as_u128().to_be_bytes();
        let holder = Value::Bytes(&holder);
        let (gone, again) = self.try_leave(ticket, holder).await?;
        if gone {
            return Ok(Release::Released);
        }
        // It has another number, or it has expired, or it is not there.
        match self.leave(&ticket.name, &self.link.sql.release, ("holder", holder)).await? {
            Release::NotHeld if again => Err(unknown()),
            release => Ok(release),
        }
    }

    fn left(&self, name: Cow<'_, str>) {
        if let Some(names) = self.idle.left(name.into_owned()) {
            idle::retire_later(&self.link, names);
        }
    }

    /// Leaves a line by `template`; `which` says whose entry goes.
    async fn leave(
        &self,
        name: &LockName,
        template: &sql::Template,
        which: (&str, Value<'_>),
    ) -> Result<Release> {
        let name = name.encoded();
        let (after, next) = self.watch.after(&self.link, &name);
        let values = [("name", Value::Bytes(name.as_bytes())), which, ("after", Value::Part(&after))];
        let read = |rows: &[MySqlRow], again| Ok((rows::left(rows)?, again));
        let (left, again) = self.link.ask(Lane::Verb, &template.fill(&values), read).await?;
        if let Some(token) = next.filter(|_| left.next) {
            self.watch.wake(&name, token, Wake::Held(token));
        }
        if !left.more {
            self.left(name);
        }
        if left.release == Release::NotHeld && again {
            return Err(unknown());
        }
        Ok(left.release)
    }

    /// In two requests. InnoDB shows a commit before it is on the disk: an entry that is only deleted is gone for whoever
    /// waits behind it, and back with its holder when the server loses power just then. So first it has no holder, which
    /// is on the disk when that is answered, and nobody has been let in yet.
    pub(super) async fn try_evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let number = ("number", Value::Int(token.get()));
        let encoded = name.encoded();
        let nobody = HolderId::random()?.as_u128().to_be_bytes();
        let sql = self.link.sql.disown.fill(&[
            ("name", Value::Bytes(encoded.as_bytes())),
            number,
            ("nobody", Value::Bytes(&nobody)),
        ]);
        self.link.ask(Lane::Verb, &sql, |rows, _| rows::flag(rows)).await?;
        // Where there was none any more this says so, and drops what has expired.
        self.leave(name, &self.link.sql.evict, number).await
    }
}

/// A release was asked twice, and found nothing the second time.
fn unknown() -> Error {
    let text =
        "the connection broke; the entry is gone now, but it is not known whether this request took it";
    Error::new(ErrorKind::Unavailable, text)
}
