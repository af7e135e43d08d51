//! Renewing: keep the leases alive, then see the keys, then move the entries that need a longer lease.
//!
//! Every renewal reads the key and the lease it is on: a living lease proves nothing about a key that was evicted, and a
//! move whose answer was lost may have happened, or may happen yet. All leases an entry can be on are kept alive, so
//! it does not matter which of them it is on. A move only goes to a longer lease, or away from another client's.
//!
//! A waiter also reads one entry ahead that keeps it waiting, or the end of what is ahead: O(1) bytes in a line of any
//! length. This finds a promotion whose notification was lost.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use etcd_client::proto::{PbRangeResponse, PbTxnOpResponse};
use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use onelock_core::mode::holders;
use onelock_core::{Error, ErrorKind, FencingToken, Grant, Mode, Place, Renewal, Renewed, Result};

use crate::backend::Shared;
use crate::entries::{Blocker, Entry, ends};
use crate::error::{Failure, protocol};
use crate::keys::{Seat, Span};
use crate::lease::{Lease, Life};
use crate::lines::{ahead_op, kv, look_op, read_many, seats};
use crate::strays::taken_back;

/// How many entries move at once.
const MOVES: usize = 64;

/// One renewal under way.
struct Work<'a> {
    renewal: &'a Renewal,
    span: Span,
    key: Vec<u8>,
    entry: Option<Entry>,
    /// Whether this client knew the entry before.
    known: bool,
    /// The lease it is on as the store says.
    on: i64,
    ahead: Ahead,
    answer: Option<Result<Renewed>>,
}

/// What keeps an entry waiting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ahead {
    Unknown,
    Nobody,
    Somebody,
}

impl Work<'_> {
    fn fail(&mut self, error: Error) {
        self.answer.get_or_insert(Err(error));
    }

    fn not_held(&mut self) {
        self.answer.get_or_insert(Ok(Renewed::NotHeld));
    }

    fn number(&self) -> i64 {
        self.entry.as_ref().map_or(0, |entry| entry.number)
    }

    fn held(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.held)
    }

    fn blocker(&self) -> Option<&Blocker> {
        self.entry.as_ref().and_then(|entry| entry.blocker.as_deref())
    }

    /// The lease it needs.
    fn needs(&self) -> Duration {
        if self.held() { self.renewal.lease } else { self.renewal.waiter_lease }
    }

    /// The lease of this client that it is on, if that is long enough.
    fn stays_on(&self, kept: &HashSet<i64>) -> Option<&Arc<Lease>> {
        self.long_enough(kept).find(|lease| lease.id == self.on)
    }

    fn long_enough(&self, kept: &HashSet<i64>) -> impl Iterator<Item = &Arc<Lease>> {
        let leases = self.entry.as_ref().map_or(&[][..], |entry| &entry.leases);
        let (needs, delay) = (self.needs(), self.renewal.ticket.delay);
        leases.iter().filter(move |lease| kept.contains(&lease.id) && lease.lasts(delay) >= needs)
    }
}

impl Shared {
    pub(crate) async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut work: Vec<_> = due.iter().map(|renewal| self.work(renewal)).collect();
        self.find_unknown(&mut work).await;
        let kept = self.keep_alive(&mut work).await;
        self.see_keys(&mut work).await;
        let late = OnceLock::new();
        stream::iter(work.iter_mut().filter(|item| item.answer.is_none()))
            .for_each_concurrent(MOVES, |item| self.settle(item, &kept, &late))
            .await;
        work.into_iter().map(|work| self.answer(work)).collect()
    }

    fn work<'a>(&self, renewal: &'a Renewal) -> Work<'a> {
        let ticket = &renewal.ticket;
        let span = self.keys.line(&ticket.name);
        let key = span.entry(ticket.mode, ticket.holder);
        let number = ticket.token.map(FencingToken::get);
        let entry = self
            .entries
            .get(ticket.holder)
            .filter(|entry| number.is_none_or(|number| number == entry.number));
        let answer = self.members.open().err().map(Err);
        Work { renewal, span, key, known: entry.is_some(), entry, on: 0, ahead: Ahead::Unknown, answer }
    }

    /// Reads the entries that this client does not know: of a join whose answer was lost, or of another client.
    async fn find_unknown(&self, work: &mut [Work<'_>]) {
        let unknown = |item: &&mut Work<'_>| item.answer.is_none() && !item.known;
        let mut unknown: Vec<_> = work.iter_mut().filter(unknown).collect();
        let reads: Vec<_> = unknown.iter().map(|item| look_op(&item.key)).collect();
        let answers = read_many(&self.members, &reads).await;
        for (item, answer) in unknown.iter_mut().zip(answers) {
            let ticket = &item.renewal.ticket;
            match answer.and_then(|answer| own(item, answer)) {
                Err(error) => item.fail(error),
                // Of a join that was given up.
                Ok(Some(_)) if self.strays.contains(ticket.holder) => item.fail(taken_back()),
                Ok(Some(seat)) if ticket.token.is_none_or(|token| token.get() == seat.number) => {
                    let leases: Vec<_> = self.leases.by_id(seat.lease).into_iter().collect();
                    let (key, ends) = (seat.key, self.clock.now());
                    item.entry =
                        Some(Entry { key, number: seat.number, leases, held: false, blocker: None, ends });
                }
                Ok(_) => item.not_held(),
            }
        }
    }

    /// One round trip for every lease that entries can be on, before their keys are seen: a key that is seen then was
    /// there after its lease was renewed. Those that live.
    async fn keep_alive(&self, work: &mut [Work<'_>]) -> HashSet<i64> {
        let mut leases: HashMap<i64, Arc<Lease>> = HashMap::new();
        for lease in work.iter().filter_map(|item| item.entry.as_ref()).flat_map(|entry| &entry.leases) {
            leases.entry(lease.id).or_insert_with(|| Arc::clone(lease));
        }
        let each = leases.into_values().map(|lease| async move {
            let life = lease.keep_alive(self.leases.means()).await;
            (lease.id, life)
        });
        let lives: HashMap<i64, Result<Life>> = join_all(each).await.into_iter().collect();
        for item in work.iter_mut() {
            let leases = item.entry.as_ref().map_or(&[][..], |entry| &entry.leases);
            let failed = leases.iter().find_map(|lease| lives.get(&lease.id)?.as_ref().err().cloned());
            failed.into_iter().for_each(|error| item.fail(error));
        }
        lives.into_iter().filter(|(_, life)| matches!(life, Ok(Life::Kept))).map(|(id, _)| id).collect()
    }

    async fn see_keys(&self, work: &mut [Work<'_>]) {
        let mut reads = Vec::new();
        for (i, item) in work.iter_mut().enumerate().filter(|(_, item)| item.answer.is_none()) {
            reads.push((i, Read::Own));
            if item.held() {
                item.ahead = Ahead::Nobody;
            } else if let Some(blocker) = item.blocker() {
                reads.push((i, Read::Blocker(blocker.key.clone())));
            } else {
                reads.extend(item.ahead().map(|read| (i, read)));
            }
        }
        self.read(reads, work).await;
        let unknown = |item: &Work<'_>| item.answer.is_none() && item.ahead == Ahead::Unknown;
        let mut reads = Vec::new();
        for (i, item) in work.iter_mut().enumerate().filter(|(_, item)| unknown(item)) {
            reads.extend(item.ahead().map(|read| (i, read)));
        }
        self.read(reads, work).await;
        for item in work.iter_mut().filter(|item| item.ahead == Ahead::Nobody) {
            if let Some(entry) = &mut item.entry {
                entry.held = true;
            }
        }
    }

    async fn read(&self, reads: Vec<(usize, Read)>, work: &mut [Work<'_>]) {
        let operations: Vec<_> = reads.iter().map(|(i, read)| read.operation(&work[*i])).collect();
        let answers = read_many(&self.members, &operations).await;
        for ((i, read), answer) in reads.into_iter().zip(answers) {
            let item = &mut work[i];
            if let Err(error) = answer.and_then(|answer| read.tell(item, answer)) {
                item.fail(error);
            }
        }
    }

    /// Sees that an entry is on a lease that is long enough. When one move is not answered in time, those not yet begun
    /// fail with it: a renewal of many takes no longer than one request.
    async fn settle(&self, item: &mut Work<'_>, kept: &HashSet<i64>, late: &OnceLock<Error>) {
        if item.stays_on(kept).is_some() {
            return;
        }
        if let Some(error) = late.get() {
            return item.fail(error.clone());
        }
        // One that it can come to be on already is better than another.
        let target = match item.long_enough(kept).next() {
            Some(target) => Ok(Arc::clone(target)),
            None => self.leases.get(item.needs(), item.renewal.ticket.delay).await,
        };
        let moved = match target {
            Ok(target) => self.move_to(item, target).await,
            Err(error) => Err(error),
        };
        match moved {
            Ok(true) => {}
            Ok(false) => item.not_held(),
            Err(error) => {
                if error.kind() == ErrorKind::Timeout {
                    let _ = late.set(error.clone());
                }
                item.fail(error);
            }
        }
    }

    /// Moves an entry from the lease it is on to another; false when it is gone.
    async fn move_to(&self, item: &mut Work<'_>, target: Arc<Lease>) -> Result<bool> {
        let (holder, delay, known) = (item.renewal.ticket.holder, item.renewal.ticket.delay, item.known);
        let Some(entry) = &mut item.entry else { return Ok(false) };
        if entry.leases.iter().all(|lease| lease.id != target.id) {
            entry.leases.push(Arc::clone(&target));
        }
        // Noted before the put is sent: whatever becomes of its answer, the target lives as long as the entry.
        let note = |entry: &mut Entry| {
            if entry.leases.iter().all(|lease| lease.id != target.id) {
                entry.leases.push(Arc::clone(&target));
            }
        };
        if !self.entries.change(holder, entry.number, note) {
            if known {
                // Released meanwhile.
                return Ok(false);
            }
            entry.ends = ends(self.clock.now(), &target, delay);
            self.entries.put(holder, entry.clone());
        }
        let call = |client: Arc<Client>| {
            let txn = move_txn(entry, item.on, &target);
            async move { kv(&client).txn(txn).await }
        };
        let (life, answer) = tokio::join!(self.refresh(&target), self.members.request(call));
        let answer = match answer {
            Ok(answer) => answer.0,
            Err(failure) => {
                if matches!(failure, Failure::LeaseGone) {
                    target.lost();
                }
                return Err(Error::from(failure).during("renew"));
            }
        };
        if !answer.succeeded {
            let part = answer.responses.into_iter().next().and_then(|part| part.response);
            let Some(PbTxnOpResponse::ResponseRange(range)) = part else {
                return Err(protocol("etcd left out the answer to a move"));
            };
            match own(item, range)? {
                // An earlier try of the same move.
                Some(seat) if seat.number == item.number() && seat.lease == target.id => {}
                Some(seat) if seat.number == item.number() => {
                    return Err(Error::new(ErrorKind::Unavailable, "an entry moved while it was moved"));
                }
                _ => return Ok(false),
            }
        }
        item.on = target.id;
        Ok(life? == Life::Kept)
    }

    fn answer(&self, work: Work<'_>) -> Result<Renewed> {
        let Work { renewal, entry, on, known, answer, .. } = work;
        let (holder, delay) = (renewal.ticket.holder, renewal.ticket.delay);
        match answer {
            Some(Ok(answer)) => {
                if let Some(entry) = entry {
                    self.entries.forget(holder, entry.number);
                }
                return Ok(answer);
            }
            Some(Err(error)) => return Err(error),
            None => {}
        }
        let Some(mut entry) = entry else { return Err(protocol("an entry was renewed that was not seen")) };
        let Some(lease) = entry.leases.iter().find(|lease| lease.id == on).map(Arc::clone) else {
            return Err(protocol("an entry was renewed on a lease of another client"));
        };
        entry.ends = ends(self.clock.now(), &lease, delay);
        let change = |ours: &mut Entry| {
            ours.held |= entry.held;
            ours.blocker.clone_from(&entry.blocker);
            ours.ends = entry.ends;
            ours.leases.retain(|lease| !lease.is_gone());
        };
        if !self.entries.change(holder, entry.number, change) && !known {
            self.entries.put(holder, entry.clone());
        }
        let (token, lasts) = (FencingToken::new(entry.number)?, lease.lasts(delay));
        Ok(match entry.held {
            true => Renewed::Held(Grant { token, lease: lasts }),
            false => Renewed::Waiting(Place { token: Some(token), lease: lasts, retry_after: None }),
        })
    }
}

/// Moves an entry to another lease, or reads it when it is not where it was seen. A put that comes late does nothing to
/// an entry that has moved on, or was released.
fn move_txn(entry: &Entry, from: i64, to: &Lease) -> Txn {
    let key = &entry.key[..];
    let put = PutOptions::new().with_lease(to.id).with_ignore_value();
    Txn::new()
        .when([
            Compare::create_revision(key, CompareOp::Equal, entry.number),
            Compare::lease(key, CompareOp::Equal, from),
        ])
        .and_then([TxnOp::put(key, "", Some(put))])
        .or_else([look_op(key)])
}

/// The entry's own key in an answer.
fn own(item: &Work<'_>, answer: PbRangeResponse) -> Result<Option<Seat>> {
    Ok(seats(&item.span, answer)?.pop().filter(|seat| seat.key == item.key))
}

/// One reading for one entry.
enum Read {
    /// Its own key.
    Own,
    /// The entry that kept it waiting.
    Blocker(Vec<u8>),
    /// The last of those ahead in a part of the line in which anybody keeps it waiting.
    Against(Span),
    /// The permits ahead, as many as would be too many whatever they weigh.
    Permits(Span, i64),
}

impl Work<'_> {
    /// What tells whether anybody ahead keeps it waiting. Nobody does unless an answer says so.
    fn ahead(&mut self) -> impl Iterator<Item = Read> + use<> {
        self.ahead = Ahead::Nobody;
        if let Some(entry) = &mut self.entry {
            entry.blocker = None;
        }
        let mode = self.renewal.ticket.mode;
        let beside = match (mode, self.span.beside(mode)) {
            (Mode::Permit { limit, .. }, Some(beside)) => Some(Read::Permits(beside, i64::from(limit.get()))),
            _ => None,
        };
        self.span.against(mode).into_iter().map(Read::Against).chain(beside)
    }
}

impl Read {
    fn operation(&self, item: &Work<'_>) -> TxnOp {
        match self {
            Self::Own => look_op(&item.key),
            Self::Blocker(key) => look_op(key),
            // One more, because the entry itself may be among them.
            Self::Against(part) => ahead_op(part, item.number(), 2),
            Self::Permits(part, permits) => ahead_op(part, item.number(), permits + 1),
        }
    }

    fn tell(&self, item: &mut Work<'_>, answer: PbRangeResponse) -> Result<()> {
        let number = item.number();
        if matches!(self, Self::Own) {
            match own(item, answer)?.filter(|seat| seat.number == number) {
                Some(seat) => item.on = seat.lease,
                None => item.not_held(),
            }
            return Ok(());
        }
        let mut seats = seats(&item.span, answer)?;
        let seen = seats.len();
        seats.retain(|seat| seat.key != item.key);
        if let Self::Against(part) | Self::Permits(part, _) = self
            && part.contains(&item.key)
            && seen == seats.len()
        {
            item.not_held();
        }
        match self {
            Self::Own => {}
            Self::Blocker(key) => {
                let same = item.blocker().map(|blocker| blocker.number);
                if seats.iter().any(|seat| seat.key == *key && Some(seat.number) == same) {
                    item.ahead = Ahead::Somebody;
                }
            }
            Self::Against(_) => {
                if let (Some(seat), Some(entry)) = (seats.pop(), &mut item.entry) {
                    item.ahead = Ahead::Somebody;
                    entry.blocker = Some(Arc::new(Blocker { key: seat.key, number: seat.number }));
                }
            }
            Self::Permits(..) => {
                // The last are read first, but the order does not matter: they hold with this one, or it waits.
                let line = seats.iter().map(|seat| seat.mode).chain([item.renewal.ticket.mode]);
                if holders(line) <= seats.len() {
                    item.ahead = Ahead::Somebody;
                }
            }
        }
        Ok(())
    }
}
