//! Renewing: keep the leases alive, then see the keys, then move the entries that need a longer lease.
//!
//! Every renewal reads the key and the lease it is on: a living lease proves nothing about a key that was evicted, and a
//! move whose answer was lost may have happened, or may happen yet. All leases an entry can be on are kept alive, so
//! it does not matter which of them it is on. A move only goes to a longer lease, or away from another client's.
//!
//! A waiter also reads the entry that keeps it waiting, or the nearest ones ahead: O(1) bytes in a line of any length. This
//! finds a promotion whose notification was lost.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::proto::PbRangeResponse;
use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp};
use futures_util::future::{join_all, try_join_all};
use onelock_core::{Error, ErrorKind, FencingToken, Grant, Place, Renewal, Renewed, Result, Timestamp};

use crate::entries::{Entries, Own};
use crate::error::protocol;
use crate::keys::{Keys, Span};
use crate::lease::{Lease, Leases};
use crate::line;

/// One renewal under way.
struct Work<'a> {
    renewal: &'a Renewal,
    span: Span,
    /// The entry as far as it is known.
    own: Own,
    /// Its number as this client knew it.
    knew: i64,
    /// The lease it is on as the store says; 0 until its key is read.
    on: i64,
    answer: Option<Result<Renewed>>,
}

pub(crate) async fn renew(
    keys: &Keys,
    leases: &Arc<Leases>,
    entries: &Entries,
    due: &[Renewal],
) -> Vec<Result<Renewed>> {
    let mut work: Vec<_> = due.iter().map(|renewal| Work::new(keys, entries, renewal)).collect();
    // Before the keys are seen: a key that is seen then was there after its lease was renewed.
    let begun = leases.now();
    join_all(work.iter_mut().map(|work| work.keep_alive(leases, begun))).await;
    for _ in 0..2 {
        read(leases, &mut work).await;
    }
    let unsettled = work.iter_mut().filter(|work| work.answer.is_none());
    join_all(unsettled.map(|work| work.settle(leases, entries, begun))).await;
    work.into_iter().map(|work| work.answer(leases, entries)).collect()
}

/// Reads the keys, and of waiters who keeps them waiting: once more where that was not known, or is gone.
async fn read(leases: &Leases, work: &mut [Work<'_>]) {
    let unplaced =
        work.iter_mut().filter(|work| work.answer.is_none() && (work.on == 0 || work.own.ahead.is_none()));
    let reads = |work: &Work<'_>| work.own.reads(&work.span, work.renewal.ticket.mode, &GetOptions::new());
    let mut work: Vec<_> = unplaced.map(|work| (reads(work), work)).collect();
    let reads: Vec<_> = work.iter().flat_map(|(reads, _)| reads.clone()).collect();
    let mut answers = line::read_many(&leases.cluster, &reads).await.into_iter();
    for (reads, work) in &mut work {
        let answers: Vec<_> = answers.by_ref().take(reads.len()).collect();
        match answers.into_iter().collect::<Result<Vec<_>>>() {
            Ok(answers) => work.learn(answers),
            Err(error) => work.fail(error),
        }
    }
}

impl<'a> Work<'a> {
    fn new(keys: &Keys, entries: &Entries, renewal: &'a Renewal) -> Self {
        let ticket = &renewal.ticket;
        let span = keys.line(&ticket.name);
        let number = ticket.token.map(FencingToken::get);
        let known = entries.known(ticket.holder);
        let knew = known.as_ref().map_or(0, |own| own.number);
        let own = known.filter(|own| number.is_none_or(|number| own.number == 0 || number == own.number));
        let mut own = own.unwrap_or_else(|| Own::new(span.entry(ticket.mode, ticket.holder)));
        own.number = number.unwrap_or(own.number);
        Self { renewal, span, own, knew, on: 0, answer: None }
    }

    fn fail(&mut self, error: Error) {
        self.answer.get_or_insert(Err(error));
    }

    /// Keeps all leases alive that the entry can be on: a round trip for all who ask at once.
    async fn keep_alive(&mut self, leases: &Leases, begun: Timestamp) {
        let kept = self.own.leases.iter().map(|lease| leases.keep_alive(lease, begun));
        if let Err(error) = try_join_all(kept).await {
            self.fail(error);
        }
    }

    fn learn(&mut self, answers: Vec<PbRangeResponse>) {
        let own = self.own.learn(&self.span, self.renewal.ticket.mode, answers);
        // What this client has released, or let lapse, is on a lease of its own: on another's it was resumed.
        let lapsed = |on| self.own.released && self.own.leases.iter().any(|lease| lease.id == on);
        match own.filter(|kv| !lapsed(kv.lease)) {
            Some(kv) => self.on = kv.lease,
            None => self.answer = Some(Ok(Renewed::NotHeld)),
        }
    }

    /// Sees that an entry is on a lease that is long enough.
    async fn settle(&mut self, leases: &Arc<Leases>, entries: &Entries, begun: Timestamp) {
        let needs = if self.own.holds() { self.renewal.lease } else { self.renewal.waiter_lease };
        let delay = self.renewal.ticket.delay;
        let lasts = |lease: &Arc<Lease>| !lease.is_gone() && lease.lasts(delay) >= needs;
        // An extension may have moved it since this began, to a lease that this renewal has not kept alive yet.
        if self.own.leases.iter().all(|lease| lease.id != self.on)
            && let Some(known) = entries.known(self.renewal.ticket.holder)
            && let Some(lease) = known.leases.into_iter().find(|lease| lease.id == self.on)
        {
            if let Err(error) = leases.keep_alive(&lease, begun).await {
                return self.fail(error);
            }
            self.own.leases.push(lease);
        }
        if self.own.leases.iter().any(|lease| lease.id == self.on && lasts(lease)) {
            return;
        }
        match self.prolong(leases, entries, needs).await {
            Ok(true) => {}
            Ok(false) => self.answer = Some(Ok(Renewed::NotHeld)),
            Err(error) => self.fail(error),
        }
    }

    /// Moves an entry from the lease it is on to one that lasts so long; false when it is gone. A put that comes late does nothing
    /// to an entry that has moved on, or was released.
    async fn prolong(&mut self, leases: &Arc<Leases>, entries: &Entries, needs: Duration) -> Result<bool> {
        let target = &leases.get(needs, self.renewal.ticket.delay).await?;
        let holder = self.renewal.ticket.holder;
        self.own.rely_on(target);
        // Noted before the put is sent: whatever becomes of its answer, the target lives as long as the entry.
        if !entries.change(holder, |own| own.rely_on(target)) {
            if entries.known(holder).is_some_and(|own| own.released) && !self.own.released {
                return Ok(false);
            }
            self.own.released = false;
            self.own.due = Some(leases.now() + target.lasts(Duration::ZERO));
            entries.put(holder, self.own.clone());
        }
        let key = &self.own.key[..];
        let put = PutOptions::new().with_lease(target.id).with_ignore_value();
        let txn = Txn::new()
            .when([
                Compare::create_revision(key, CompareOp::Equal, self.own.number),
                Compare::lease(key, CompareOp::Equal, self.on),
            ])
            .and_then([TxnOp::put(key, "", Some(put))])
            .or_else([line::key_op(key, GetOptions::new())]);
        let mut unclear = false;
        let sent = leases.cluster.send(&txn, &mut unclear);
        let (kept, answer) = tokio::join!(leases.refresh(target), sent);
        let answer = answer?;
        if !answer.succeeded {
            let found = line::ranges(answer).next().and_then(|range| line::found(key, range));
            match found.filter(|kv| kv.create_revision == self.own.number) {
                None => return Ok(false),
                // An earlier try of the same move.
                Some(kv) if kv.lease == target.id => {}
                Some(_) => {
                    return Err(Error::new(ErrorKind::Unavailable, "an entry moved while it was moved"));
                }
            }
        }
        self.on = target.id;
        kept?;
        Ok(!target.is_gone())
    }

    fn answer(self, leases: &Leases, entries: &Entries) -> Result<Renewed> {
        let Self { renewal, own, knew, on, answer, .. } = self;
        let (holder, delay) = (renewal.ticket.holder, renewal.ticket.delay);
        if let Some(answer) = answer {
            let known = entries.get(holder).is_some_and(|known| known.number == own.number);
            if known && matches!(answer, Ok(Renewed::NotHeld)) {
                entries.absent(holder, leases.now());
            }
            return answer;
        }
        let Some(lease) = own.leases.iter().find(|lease| lease.id == on) else {
            return Err(protocol("an entry was renewed on a lease of another client"));
        };
        let (token, lasts) = (FencingToken::new(own.number)?, lease.lasts(delay));
        let due = leases.now() + lasts + delay;
        // Not of the next entry of its holder, who may have joined again since.
        let mut same = true;
        let there = entries.change(holder, |known| {
            same = [knew, own.number].contains(&known.number);
            if !same {
                return;
            }
            (known.number, known.due) = (own.number, Some(due));
            if !known.holds() {
                known.ahead.clone_from(&own.ahead);
            }
            // Where it came to be on the lease that it was moved to last, it can be on no other.
            if !known.unclear && known.leases.last().is_some_and(|last| last.id == on) {
                known.leases.retain(|lease| lease.id == on);
            }
        });
        if !there {
            // It was released meanwhile.
            return Ok(Renewed::NotHeld);
        }
        if !same {
            return Err(Error::new(ErrorKind::Unavailable, "its holder joins again meanwhile"));
        }
        Ok(match own.holds() {
            true => Renewed::Held(Grant::new(token, lasts)),
            false => Renewed::Waiting(Place::new(token, lasts)),
        })
    }
}
