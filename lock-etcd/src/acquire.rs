//! Joining a line: one transaction that looks at the line, joins it, and reads it if that is needed to know the place.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::proto::{PbRangeResponse, PbTxnOpResponse, PbTxnResponse};
use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};
use lock_core::{
    Busy, Error, ErrorKind, FencingToken, Grant, Mode, Place, Renewal, Renewed, Request, Result, Standing,
    Timestamp,
};

use tokio::time::timeout;

use crate::backend::Shared;
use crate::entries::{Entry, ends};
use crate::error::{Failure, protocol};
use crate::keys::{Seat, Span, place_of};
use crate::lease::{Lease, Life};
use crate::lines::{Reading, kv, look_op, read_new_op, read_op, seats, whole};
use crate::members::closed;

/// How often a try for a permit looks again because somebody joined between looking and joining; then it is busy.
const LOOKS: usize = 16;

/// What a try to join came to.
enum Joined {
    /// The entry holds, on the lease of a holder.
    Held(i64),
    /// The entry waits, on the lease of a waiter. With what was read of the line behind it, if anything was.
    Waits(i64, Option<Reading>),
    /// The entry waits, but on the lease of a holder.
    WaitsAsHolder(i64, Reading),
    /// There is no entry.
    Busy,
    /// The entry was there already.
    There,
}

/// The place where an entry is to be made.
struct Spot<'a> {
    request: &'a Request,
    span: Span,
    key: Vec<u8>,
    hold: Arc<Lease>,
    wait: Arc<Lease>,
}

impl Shared {
    pub(crate) async fn join(&self, request: &Request) -> Result<Standing> {
        self.members.open()?;
        let Ok(turn) = timeout(self.members.queue_time(), self.joins.acquire()).await else {
            let text = "too many acquisitions of this client are under way";
            return Err(Error::new(ErrorKind::Unavailable, text));
        };
        let _turn = turn.map_err(|_| closed())?;
        let mut tries = self.members.tries();
        loop {
            let Some(limit) = tries.next().await else {
                return Err(self.members.late(self.members.try_time()));
            };
            let hold = self.leases.get(&self.members, request.lease, request.delay).await?;
            let wait = if request.queue {
                self.leases.get(&self.members, request.waiter_lease, request.delay).await?
            } else {
                Arc::clone(&hold)
            };
            let span = self.keys.line(&request.name);
            let key = span.entry(request.mode, request.holder);
            let spot = Spot { request, span, key, hold, wait };
            // Leases that were not kept alive lately are, beside the transaction: no round trip more.
            let (joined, hold_life, wait_life) =
                tokio::join!(self.attempt_join(&spot, limit), self.refresh(&spot.hold), async {
                    if spot.request.queue { self.refresh(&spot.wait).await } else { Ok(Life::Kept) }
                },);
            let standing = match joined {
                Ok(Joined::Held(number)) => match hold_life {
                    Ok(Life::Kept) => self.joined(&spot, number, true)?,
                    Ok(Life::Gone) => continue,
                    Err(error) => return Err(self.abandon(&spot, number, &spot.hold, error)),
                },
                Ok(Joined::Waits(number, reading)) => match wait_life {
                    Ok(Life::Kept) => self.in_line(&spot, number, reading.as_ref())?,
                    Ok(Life::Gone) => continue,
                    Err(error) => return Err(self.abandon(&spot, number, &spot.wait, error)),
                },
                Ok(Joined::WaitsAsHolder(number, reading)) => {
                    match self.move_entry(&spot.key, number, spot.hold.id, &spot.wait).await {
                        Ok(true) if matches!(wait_life, Ok(Life::Kept)) => {
                            self.in_line(&spot, number, Some(&reading))?
                        }
                        Ok(_) => match wait_life {
                            Ok(_) => continue,
                            Err(error) => return Err(self.abandon(&spot, number, &spot.wait, error)),
                        },
                        Err(error) => {
                            spot.wait.retire();
                            return Err(self.abandon(&spot, number, &spot.hold, error));
                        }
                    }
                }
                Ok(Joined::Busy) => Standing::Busy(Busy { retry_after: None }),
                Ok(Joined::There) => match self.rejoin(request).await? {
                    Some(standing) => standing,
                    None => continue,
                },
                Err(Failure::LeaseGone) => {
                    // Which of the two is not said.
                    spot.hold.retire();
                    spot.wait.retire();
                    continue;
                }
                Err(Failure::Other(error)) => {
                    if error.is_unclear() {
                        spot.hold.retire();
                        spot.wait.retire();
                    }
                    if error.is_retryable() && tries.more() {
                        continue;
                    }
                    return Err(error);
                }
            };
            return Ok(standing);
        }
    }

    /// Keeps a lease alive unless it was lately.
    pub(crate) async fn refresh(&self, lease: &Lease) -> Result<Life> {
        if lease.fresh(self.clock.now()) {
            return Ok(Life::Kept);
        }
        lease.keep_alive(&self.members, &*self.clock).await
    }

    fn in_line(&self, spot: &Spot<'_>, number: i64, reading: Option<&Reading>) -> Result<Standing> {
        if let Some(reading) = reading {
            self.watches.learn(&spot.span, reading, reading.revision);
        }
        self.watches.prepare(&spot.span);
        self.joined(spot, number, false)
    }

    fn joined(&self, spot: &Spot<'_>, number: i64, held: bool) -> Result<Standing> {
        let (delay, token) = (spot.request.delay, FencingToken::new(number)?);
        let lease = if held { &spot.hold } else { &spot.wait };
        let ends = ends(self.clock.now(), lease, delay);
        self.entries.put(spot.request.holder, spot.entry(number, lease, held, ends));
        let lease = lease.lasts(delay);
        Ok(match held {
            true => Standing::Held(Grant { token, lease }),
            false => Standing::Waiting(Place { token, lease, retry_after: None }),
        })
    }

    /// Gives up an entry that was made, but not as it has to be: it is taken out in the background.
    fn abandon(&self, spot: &Spot<'_>, number: i64, lease: &Arc<Lease>, error: Error) -> Error {
        self.entries.put(spot.request.holder, spot.entry(number, lease, false, self.clock.now()));
        error
    }

    /// The entry was there before: its place is the answer, and it is renewed.
    async fn rejoin(&self, request: &Request) -> Result<Option<Standing>> {
        let renewal =
            Renewal { ticket: request.ticket(), lease: request.lease, waiter_lease: request.waiter_lease };
        match self.renew(std::slice::from_ref(&renewal)).await.pop() {
            Some(Ok(Renewed::Held(grant))) => Ok(Some(Standing::Held(grant))),
            Some(Ok(Renewed::Waiting(place))) => Ok(Some(Standing::Waiting(place))),
            Some(Ok(Renewed::NotHeld)) => Ok(None),
            Some(Err(error)) => Err(error),
            None => Err(protocol("a renewal was not answered")),
        }
    }

    async fn attempt_join(&self, spot: &Spot<'_>, limit: Duration) -> Result<Joined, Failure> {
        let request = spot.request;
        if request.queue {
            let known = self.watches.known(&spot.span, request.mode);
            if let (Some((_, true)), Mode::Exclusive | Mode::Shared) = (known, request.mode) {
                return spot.queued_behind(&self.send(limit, spot.behind()).await?);
            }
            // Where a watch brings what happens, what is new is all there is to read; otherwise a reading would come too
            // early to be of use, and the first to wait reads for all.
            let known = known.map(|(complete, _)| complete);
            let answer = self.send(limit, spot.queue(known)).await?;
            return spot.queued(answer, known);
        }
        let Mode::Permit(_) = request.mode else {
            let answer = self.send(limit, spot.alone()).await?;
            return spot.tried(answer);
        };
        let looks = async {
            let mut answer = self.send(limit, spot.first_permit()).await?;
            for _ in 0..LOOKS {
                match spot.permitted(answer)? {
                    Looked::Joined(joined) => return Ok(joined),
                    Looked::Room(revision) => answer = self.send(limit, spot.next_permit(revision)).await?,
                }
            }
            Ok(Joined::Busy)
        };
        // However often it looks, it takes no longer than any other try.
        timeout(limit, looks).await.unwrap_or_else(|_| Err(self.members.late(limit).into()))
    }

    async fn send(&self, limit: Duration, txn: Txn) -> Result<PbTxnResponse, Failure> {
        let call = |client: Arc<Client>| async move { kv(&client).txn(txn).await };
        Ok(self.members.attempt(limit, call).await?.0)
    }

    /// Moves an entry from one lease to another; whether it is still there. The old lease is part of the guard, so a
    /// move that comes late never takes back a later one.
    pub(crate) async fn move_entry(&self, key: &[u8], number: i64, from: i64, to: &Lease) -> Result<bool> {
        let txn = || Txn::new().and_then([move_op(key, number, from, to)]);
        let call = |client: Arc<Client>| {
            let txn = txn();
            async move { kv(&client).txn(txn).await }
        };
        let answer = self.members.request(call).await?.0;
        let moved = answer.responses.into_iter().next().and_then(|part| part.response);
        moved_by(moved, key, number, to)
    }
}

/// The operation that moves an entry to another lease, or reads it when it is not where it was.
pub(crate) fn move_op(key: &[u8], number: i64, from: i64, to: &Lease) -> TxnOp {
    let put = PutOptions::new().with_lease(to.id).with_ignore_value();
    TxnOp::txn(
        Txn::new()
            .when([
                Compare::create_revision(key, CompareOp::Equal, number),
                Compare::lease(key, CompareOp::Equal, from),
            ])
            .and_then([TxnOp::put(key, "", Some(put))])
            .or_else([look_op(key)]),
    )
}

/// Whether a [`move_op`] left the entry on the lease `to`; false when the entry is gone.
pub(crate) fn moved_by(answer: Option<PbTxnOpResponse>, key: &[u8], number: i64, to: &Lease) -> Result<bool> {
    let Some(PbTxnOpResponse::ResponseTxn(answer)) = answer else {
        return Err(protocol("etcd left out the answer to a move"));
    };
    if answer.succeeded {
        return match answer.responses.into_iter().next().and_then(|part| part.response) {
            Some(PbTxnOpResponse::ResponsePut(_)) => Ok(true),
            _ => Err(protocol("etcd left out the move")),
        };
    }
    let mut ranges = ranges(answer);
    let seat = ranges.pop().and_then(|range| range.kvs.into_iter().next());
    match seat.filter(|kv| kv.key == key && kv.create_revision == number) {
        None => Ok(false),
        // An earlier try of the same move.
        Some(kv) if kv.lease == to.id => Ok(true),
        Some(_) => Err(Error::new(ErrorKind::Unavailable, "an entry moved while it was moved")),
    }
}

/// The answers to the readings of a transaction.
pub(crate) fn ranges(answer: PbTxnResponse) -> Vec<PbRangeResponse> {
    let range = |part: Option<PbTxnOpResponse>| match part {
        Some(PbTxnOpResponse::ResponseRange(range)) => Some(range),
        _ => None,
    };
    answer.responses.into_iter().filter_map(|part| range(part.response)).collect()
}

/// What a look at a line of permits came to.
enum Looked {
    Joined(Joined),
    /// There was room for one more at this revision.
    Room(i64),
}

impl Spot<'_> {
    fn entry(&self, number: i64, lease: &Arc<Lease>, held: bool, ends: Timestamp) -> Entry {
        Entry { key: self.key.clone(), number, lease: Arc::clone(lease), held, ends }
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
    fn queue(&self, known: Option<i64>) -> Txn {
        let (mut holds, mut waits) = (vec![self.put(&self.hold)], vec![self.put(&self.wait)]);
        if matches!(self.request.mode, Mode::Permit(_)) {
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
    fn behind(&self) -> Txn {
        Txn::new().when([self.absent()]).and_then([self.put(&self.wait)])
    }

    fn queued_behind(&self, answer: &PbTxnResponse) -> Result<Joined, Failure> {
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

    fn queued(&self, answer: PbTxnResponse, known: Option<i64>) -> Result<Joined, Failure> {
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
        if !matches!(self.request.mode, Mode::Permit(_)) {
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
    fn alone(&self) -> Txn {
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

    fn tried(&self, answer: PbTxnResponse) -> Result<Joined, Failure> {
        if answer.succeeded {
            let revision = revision(&answer)?;
            return self.held(answer, revision).map(Joined::Held);
        }
        let own = ranges(answer).pop().ok_or_else(unread)?;
        Ok(if own.kvs.is_empty() { Joined::Busy } else { Joined::There })
    }

    /// Joins an empty line, or reads it.
    fn first_permit(&self) -> Txn {
        Txn::new()
            .when([self.absent(), Self::empty(&self.span)])
            .and_then(self.hold())
            .or_else([read_op(&self.span)])
    }

    /// Joins if nobody else did since `revision`, or reads.
    fn next_permit(&self, revision: i64) -> Txn {
        let mut when = self.clear();
        when.push(self.absent());
        if let Some(beside) = self.span.beside(self.request.mode) {
            when.push(
                Compare::create_revision(beside.start, CompareOp::Less, revision + 1).with_range(beside.end),
            );
        }
        Txn::new().when(when).and_then(self.hold()).or_else([read_op(&self.span)])
    }

    fn permitted(&self, answer: PbTxnResponse) -> Result<Looked, Failure> {
        let revision = revision(&answer)?;
        if answer.succeeded {
            return self.held(answer, revision).map(|number| Looked::Joined(Joined::Held(number)));
        }
        let line: Vec<Seat> = whole(&self.span, ranges(answer).pop().ok_or_else(unread)?)?;
        let mode = self.request.mode;
        let room = line.iter().all(|seat| seat.mode == mode) && line.len() < limit_of(mode);
        Ok(if line.iter().any(|seat| seat.key == self.key) {
            Looked::Joined(Joined::There)
        } else if room {
            Looked::Room(revision)
        } else {
            Looked::Joined(Joined::Busy)
        })
    }
}

/// How many entries of this mode hold beside each other.
fn limit_of(mode: Mode) -> usize {
    match mode {
        Mode::Exclusive => 1,
        Mode::Shared => usize::MAX,
        Mode::Permit(n) => n.get() as usize,
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
