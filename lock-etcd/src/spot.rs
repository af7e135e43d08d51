//! The transactions that make an entry, and what their answers come to.

use std::sync::Arc;

use etcd_client::proto::{PbTxnOpResponse, PbTxnResponse};
use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};
use onelock_core::mode::holders;
use onelock_core::{Error, Mode, Request, Timestamp};

use crate::acquire::ranges;
use crate::entries::Entry;
use crate::error::{Failure, protocol};
use crate::keys::{Seat, Span, place_of};
use crate::lease::Lease;
use crate::lines::{Reading, look_op, read_new_op, read_op, seats, whole};

/// What a try to join came to.
pub(crate) enum Joined {
    /// The entry holds, on the lease of a holder.
    Held(i64),
    /// The entry waits, on the lease of a waiter. With what was read of the line behind it, if anything was.
    Waits(i64, Option<Reading>),
    /// The entry waits, but on the lease of a holder: a permit, because the store cannot count them.
    WaitsAsHolder(i64, Reading),
    /// There is no entry.
    Busy,
    /// The entry was there already.
    There,
}

/// The place where an entry is to be made.
pub(crate) struct Spot<'a> {
    pub(crate) request: &'a Request,
    pub(crate) span: Span,
    pub(crate) key: Vec<u8>,
    pub(crate) hold: Arc<Lease>,
    pub(crate) wait: Arc<Lease>,
}

/// What a look at a line of permits came to.
pub(crate) enum Looked {
    Joined(Joined),
    /// There was room for one more at this revision.
    Room(i64),
}

impl Spot<'_> {
    pub(crate) fn entry(&self, number: i64, lease: &Arc<Lease>, held: bool, ends: Timestamp) -> Entry {
        let leases = vec![Arc::clone(lease)];
        Entry { key: self.key.clone(), number, leases, held, blocker: None, ends }
    }

    fn put(&self, lease: &Lease) -> TxnOp {
        let note = self.request.note.as_str();
        TxnOp::put(&self.key[..], note, Some(PutOptions::new().with_lease(lease.id)))
    }

    fn absent(&self) -> Compare {
        Compare::create_revision(&self.key[..], CompareOp::Equal, 0)
    }

    /// That no key is in a part of the line.
    fn empty(part: &Span) -> Compare {
        Compare::create_revision(&part.start[..], CompareOp::Equal, 0).with_range(part.end.clone())
    }

    /// That nothing in the line is against this mode.
    fn clear(&self) -> Vec<Compare> {
        self.span.against(self.request.mode).iter().map(Self::empty).collect()
    }

    /// Joins in any case. A permit cannot be counted by the store, so it reads the whole line; the others read what is new
    /// since `known`, if they wait.
    pub(crate) fn queue(&self, known: Option<i64>) -> Txn {
        let (mut holds, mut waits) = (vec![self.put(&self.hold)], vec![self.put(&self.wait)]);
        if matches!(self.request.mode, Mode::Permit { .. }) {
            holds.push(read_op(&self.span));
            waits.push(read_op(&self.span));
        } else {
            holds.push(look_op(&self.key));
            waits.extend(known.map(|known| read_new_op(&self.span, known)));
        }
        let join = Txn::new().when(self.clear()).and_then(holds).or_else(waits);
        Txn::new().when([self.absent()]).and_then([TxnOp::txn(join), self.needs_write()])
    }

    /// Joins as a waiter, without a look at the line: this client follows it and knows of somebody to wait for. Should they
    /// be gone by now, the watch says so together with the join. etcd looks at a range by stepping over every key that was
    /// ever in it, so a line that is in use is not looked at for every join.
    pub(crate) fn behind(&self) -> Txn {
        Txn::new().when([self.absent()]).and_then([self.put(&self.wait)])
    }

    pub(crate) fn queued_behind(&self, answer: &PbTxnResponse) -> Result<Joined, Failure> {
        if !answer.succeeded {
            return Ok(Joined::There);
        }
        Ok(Joined::Waits(revision(answer)?, None))
    }

    /// Deletes nothing, for want of a key of that name. etcd does not check rights inside an inner transaction, and who
    /// may not write must not join.
    fn needs_write(&self) -> TxnOp {
        TxnOp::delete([&self.key[..], b"/"].concat(), None)
    }

    pub(crate) fn queued(&self, answer: PbTxnResponse, known: Option<i64>) -> Result<Joined, Failure> {
        if !answer.succeeded {
            return Ok(Joined::There);
        }
        let revision = revision(&answer)?;
        let Some(PbTxnOpResponse::ResponseTxn(join)) =
            answer.responses.into_iter().next().and_then(|part| part.response)
        else {
            return Err(protocol("etcd left out the answer to a join").into());
        };
        let as_holder = join.succeeded;
        if !matches!(self.request.mode, Mode::Permit { .. }) {
            // What is against these modes is ahead of them, wherever in the line.
            if as_holder {
                return self.held(join, revision).map(Joined::Held);
            }
            let line = ranges(join).pop().map(|range| seats(&self.span, range)).transpose()?;
            let reading = |line| Reading { line, above: known.unwrap_or_default(), revision };
            return Ok(Joined::Waits(revision, line.map(reading)));
        }
        let line = ranges(join).pop().map(|range| whole(&self.span, range)).transpose()?;
        let reading = Reading { line: line.ok_or_else(unread)?, above: 0, revision };
        let (place, holders) = place_of(&reading.line, &self.key).ok_or_else(unread)?;
        match (place < holders, as_holder) {
            (true, true) => Ok(Joined::Held(revision)),
            (false, true) => Ok(Joined::WaitsAsHolder(revision, reading)),
            (false, false) => Ok(Joined::Waits(revision, Some(reading))),
            (true, false) => Err(protocol("an entry holds in a line that is against it").into()),
        }
    }

    /// Joins only where nothing is against it.
    pub(crate) fn alone(&self) -> Txn {
        let mut when = self.clear();
        when.push(self.absent());
        Txn::new().when(when).and_then(self.hold()).or_else([look_op(&self.key)])
    }

    /// Makes the entry of a holder, and reads it: see [`Spot::held`].
    fn hold(&self) -> [TxnOp; 2] {
        [self.put(&self.hold), look_op(&self.key)]
    }

    /// The number of an entry that holds, from the answer to [`Spot::hold`]. A flag is one byte; a grant names the entry's
    /// key, with its holder in it, as the put has left it. So no answer that was altered on the way is taken for one.
    fn held(&self, answer: PbTxnResponse, revision: i64) -> Result<i64, Failure> {
        let put = matches!(
            answer.responses.first().and_then(|part| part.response.as_ref()),
            Some(PbTxnOpResponse::ResponsePut(_))
        );
        let own = ranges(answer).pop().and_then(|range| range.kvs.into_iter().next());
        let made = own.is_some_and(|kv| {
            kv.key == self.key && kv.create_revision == revision && kv.lease == self.hold.id
        });
        if put && made {
            Ok(revision)
        } else {
            Err(protocol("etcd granted an entry that it does not show").into())
        }
    }

    pub(crate) fn tried(&self, answer: PbTxnResponse) -> Result<Joined, Failure> {
        if answer.succeeded {
            let revision = revision(&answer)?;
            return self.held(answer, revision).map(Joined::Held);
        }
        let own = ranges(answer).pop().ok_or_else(unread)?;
        Ok(if own.kvs.is_empty() { Joined::Busy } else { Joined::There })
    }

    /// Joins an empty line, or reads it.
    pub(crate) fn first_permit(&self) -> Txn {
        Txn::new()
            .when([self.absent(), Self::empty(&self.span)])
            .and_then(self.hold())
            .or_else([read_op(&self.span)])
    }

    /// Joins if nobody else did since `revision`, or reads.
    pub(crate) fn next_permit(&self, revision: i64) -> Txn {
        let mut when = self.clear();
        when.push(self.absent());
        if let Some(beside) = self.span.beside(self.request.mode) {
            when.push(
                Compare::create_revision(beside.start, CompareOp::Less, revision + 1).with_range(beside.end),
            );
        }
        Txn::new().when(when).and_then(self.hold()).or_else([read_op(&self.span)])
    }

    pub(crate) fn permitted(&self, answer: PbTxnResponse) -> Result<Looked, Failure> {
        let revision = revision(&answer)?;
        if answer.succeeded {
            return self.held(answer, revision).map(|number| Looked::Joined(Joined::Held(number)));
        }
        let line: Vec<Seat> = whole(&self.span, ranges(answer).pop().ok_or_else(unread)?)?;
        let mode = self.request.mode;
        let room = holders(line.iter().map(|seat| seat.mode).chain([mode])) > line.len();
        Ok(if line.iter().any(|seat| seat.key == self.key) {
            Looked::Joined(Joined::There)
        } else if room {
            Looked::Room(revision)
        } else {
            Looked::Joined(Joined::Busy)
        })
    }
}

fn unread() -> Error {
    protocol("etcd left out a reading")
}

fn revision(answer: &PbTxnResponse) -> Result<i64, Failure> {
    match answer.header.as_ref().map_or(0, |header| header.revision) {
        revision if revision > 0 => Ok(revision),
        _ => Err(protocol("etcd answered without a revision").into()),
    }
}
