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
use crate::keys::{Keys, Span};
use crate::lease::{Lease, Leases};
use crate::line;

/// One renewal under way.
struct Work<'a> {
    renewal: &'a Renewal,
    span: Span,
    /// The entry as far as it is known.
    own: Own,
    /// The lease it is on as the store says; 0 until its key is read.
    on: i64,
    /// That it is gone, or why that is not known.
    over: Option<Result<()>>,
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
    join_all(work.into_iter().map(|work| work.finish(leases, entries, begun))).await
}

/// Reads the keys, and what keeps waiters waiting: once more where that was not known, or is gone.
async fn read(leases: &Leases, work: &mut [Work<'_>]) {
    let unplaced =
        work.iter_mut().filter(|work| work.over.is_none() && (work.on == 0 || work.own.ahead.is_none()));
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
        let own = entries
            .known(ticket.holder)
            .filter(|own| number.is_none_or(|number| own.number == 0 || number == own.number));
        let mut own = own.unwrap_or_else(|| Own::new(span.entry(ticket.mode, ticket.holder)));
        own.number = number.unwrap_or(own.number);
        Self { renewal, span, own, on: 0, over: None }
    }

    fn fail(&mut self, error: Error) {
        self.over.get_or_insert(Err(error));
    }

    /// Keeps all leases alive that the entry can be on: a round trip for all who ask at once.
    async fn keep_alive(&mut self, leases: &Arc<Leases>, begun: Timestamp) {
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
            None => self.over = Some(Ok(())),
        }
    }

    /// Sees that the entry is on a lease that is long enough, and notes what was read of it.
    async fn finish(mut self, leases: &Arc<Leases>, entries: &Entries, begun: Timestamp) -> Result<Renewed> {
        let (holder, delay) = (self.renewal.ticket.holder, self.renewal.ticket.delay);
        let lease = match self.over.take() {
            Some(over) => over.map(|()| None),
            None => self.settle(leases, entries, begun).await,
        };
        let (lease, own) = (lease?, self.own);
        let Some(lease) = lease else {
            if entries.get(holder).is_some_and(|known| known.number == own.number) {
                entries.absent(holder, leases.now());
            }
            return Ok(Renewed::NotHeld);
        };
        let (token, lasts) = (FencingToken::new(own.number)?, lease.lasts(delay));
        // Not of the next entry of its holder, who may have joined again since.
        let mut same = true;
        let there = entries.change(holder, |known| {
            same = known.number == own.number;
            if !same {
                return;
            }
            known.due = Some(leases.now() + lasts + delay);
            if !known.holds() {
                known.ahead.clone_from(&own.ahead);
            }
            // Where it came to be on the lease that it was moved to last, it can be on no other.
            if !known.unclear && known.leases.last().is_some_and(|last| last.id == lease.id) {
                known.leases.retain(|known| known.id == lease.id);
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

    /// The lease that the entry is on, which is long enough: where it is not, the entry is moved. `None` when it is gone. A put that
    /// comes late does nothing to an entry that has moved on, or was released.
    async fn settle(
        &mut self,
        leases: &Arc<Leases>,
        entries: &Entries,
        begun: Timestamp,
    ) -> Result<Option<Arc<Lease>>> {
        let Renewal { ticket, lease, waiter_lease, .. } = self.renewal;
        let holder = ticket.holder;
        let needs = if self.own.holds() { *lease } else { *waiter_lease };
        // An extension may have moved it since this began, to a lease that this renewal has not kept alive yet.
        let known = entries.known(holder).map(|own| own.leases).unwrap_or_default();
        if let Some(lease) = self.own.leases.iter().chain(&known).find(|lease| lease.id == self.on) {
            leases.keep_alive(lease, begun).await?;
            if !lease.is_gone() && lease.lasts(ticket.delay) >= needs {
                return Ok(Some(Arc::clone(lease)));
            }
        }
        let target = leases.get(needs, ticket.delay).await?;
        self.own.rely_on(&target);
        // Noted before the put is sent: whatever becomes of its answer, the target lives as long as the entry.
        if !entries.change(holder, |own| own.rely_on(&target)) {
            if entries.known(holder).is_some_and(|own| own.released) && !self.own.released {
                return Ok(None);
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
        let (kept, answer) = tokio::join!(leases.refresh(&target), sent);
        let answer = answer?;
        if !answer.succeeded {
            let found = line::ranges(answer).next().and_then(|range| line::found(key, range));
            match found.filter(|kv| kv.create_revision == self.own.number) {
                None => return Ok(None),
                // An earlier try of the same move.
                Some(kv) if kv.lease == target.id => {}
                Some(_) => {
                    return Err(Error::new(ErrorKind::Unavailable, "an entry moved while it was moved"));
                }
            }
        }
        kept?;
        Ok((!target.is_gone()).then_some(target))
    }
}
