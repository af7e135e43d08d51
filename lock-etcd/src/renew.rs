//! Renewing: keep the leases alive, then see that the keys are there, and move entries to the lease they need.
//!
//! A living lease proves nothing about a key that was evicted, so every renewal sees the key itself: held entries by
//! their own key, waiting ones by the line up to their number, which also repairs a wake-up that was lost. An entry
//! that has come to hold moves from the lease of a waiter to that of a holder; the move sees the key by its guard.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::proto::PbTxnOpResponse;
use etcd_client::{Client, Txn, TxnOp};
use futures_util::future::join_all;
use lock_core::{Error, FencingToken, Grant, Place, Renewal, Renewed, Result};

use crate::acquire::{move_op, moved_by};
use crate::backend::Shared;
use crate::entries::{Entry, ends};
use crate::error::{Failure, protocol};
use crate::keys::{Span, place_of};
use crate::lease::{Lease, Life};
use crate::lines::{kv, look_op, read_op, seats};

/// The most operations etcd takes in one transaction, unless it is told otherwise.
const OPERATIONS: usize = 128;

/// One renewal under way.
struct Work<'a> {
    renewal: &'a Renewal,
    span: Span,
    key: Vec<u8>,
    /// What this client knows of the entry.
    known: Option<Entry>,
    /// Its number, if anybody knows it.
    number: Option<i64>,
    /// The lease it has to be on when it is renewed; the current one while it may stay there.
    target: Option<Arc<Lease>>,
    /// The lease it is on as the store says.
    on: i64,
    held: bool,
    /// Whether the lease it stays on was kept alive by this renewal.
    kept: bool,
    answer: Option<Result<Renewed>>,
}

impl Work<'_> {
    fn open(&self) -> bool {
        self.answer.is_none()
    }

    fn lease(&self) -> Duration {
        if self.held { self.renewal.lease } else { self.renewal.waiter_lease }
    }

    fn not_held(&mut self) {
        self.answer = Some(Ok(Renewed::NotHeld));
    }

    /// Whether the entry has to change its lease.
    fn moves(&self) -> bool {
        self.target.as_ref().is_some_and(|target| target.id != self.on)
    }
}

impl Shared {
    pub(crate) async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut work: Vec<_> = due.iter().map(|renewal| self.work(renewal)).collect();
        self.aim(&mut work).await;
        self.keep_alive(&mut work).await;
        self.see_keys(&mut work).await;
        // Those that turned out to hold need the lease of a holder.
        self.aim(&mut work).await;
        self.keep_alive(&mut work).await;
        self.move_over(&mut work).await;
        work.into_iter().map(|work| self.finish(work)).collect()
    }

    fn work<'a>(&self, renewal: &'a Renewal) -> Work<'a> {
        let ticket = &renewal.ticket;
        let span = self.keys.line(&ticket.name);
        let key = span.entry(ticket.mode, ticket.holder);
        let known = self.entries.get(ticket.holder);
        let number = ticket.token.map(FencingToken::get).or(known.as_ref().map(|entry| entry.number));
        let known = known.filter(|entry| Some(entry.number) == number);
        let held = known.as_ref().is_some_and(|entry| entry.held);
        let on = known.as_ref().map_or(0, |entry| entry.lease.id);
        let answer = self.members.open().err().map(Err);
        Work { renewal, span, key, known, number, target: None, on, held, kept: false, answer }
    }

    /// Finds for each entry the lease it is to be on: the one it is on if that is long enough, never a shorter one.
    async fn aim(&self, work: &mut [Work<'_>]) {
        let mut found: HashMap<(Duration, Duration), Result<Arc<Lease>>> = HashMap::new();
        let now = self.clock.now();
        for item in work.iter_mut().filter(|item| item.open()) {
            let (lease, delay) = (item.lease(), item.renewal.ticket.delay);
            let stays = |on: &Arc<Lease>| on.id == item.on && on.open(now) && on.lasts(delay) >= lease;
            let current = item.target.as_ref().or(item.known.as_ref().map(|entry| &entry.lease));
            if let Some(current) = current.filter(|on| stays(on)) {
                item.target = Some(Arc::clone(current));
                continue;
            }
            if !found.contains_key(&(lease, delay)) {
                let made = self.leases.get(&self.members, lease, delay).await;
                found.insert((lease, delay), made);
            }
            match &found[&(lease, delay)] {
                Ok(lease) => item.target = Some(Arc::clone(lease)),
                Err(error) => item.answer = Some(Err(error.clone())),
            }
        }
    }

    /// One round trip for every lease that entries stay on: before the keys are seen, so that a key that is seen then
    /// was there after its lease was renewed.
    async fn keep_alive(&self, work: &mut [Work<'_>]) {
        let mut leases: HashMap<i64, Arc<Lease>> = HashMap::new();
        let due = |item: &&Work<'_>| item.open() && !item.moves() && !item.kept;
        for item in work.iter().filter(due) {
            if let Some(lease) = &item.target {
                leases.insert(lease.id, Arc::clone(lease));
            }
        }
        let each = leases
            .values()
            .map(|lease| async { (lease.id, lease.keep_alive(&self.members, &*self.clock).await) });
        let lives: HashMap<i64, Result<Life>> = join_all(each).await.into_iter().collect();
        for item in work.iter_mut().filter(|item| item.open() && !item.moves()) {
            match lives.get(&item.on) {
                None => {}
                Some(Ok(Life::Kept)) => item.kept = true,
                Some(Ok(Life::Gone)) => item.not_held(),
                Some(Err(error)) => item.answer = Some(Err(error.clone())),
            }
        }
    }

    /// Reads the keys, and for waiters the line before them.
    async fn see_keys(&self, work: &mut [Work<'_>]) {
        // A holder that moves is seen by the guard of the move.
        let mut look: Vec<_> =
            work.iter_mut().filter(|item| item.open() && !(item.held && item.moves())).collect();
        let mut batches = Vec::new();
        while !look.is_empty() {
            let mut size = 0;
            let fits = |item: &&mut Work<'_>| {
                size += if item.held { 1 } else { 2 };
                size > OPERATIONS
            };
            let count = look.iter().position(fits).unwrap_or(look.len());
            let rest = look.split_off(count);
            batches.push(std::mem::replace(&mut look, rest));
        }
        join_all(batches.into_iter().map(|batch| self.see_batch(batch))).await;
    }

    async fn see_batch(&self, mut batch: Vec<&mut Work<'_>>) {
        let operations: Vec<_> = batch.iter().flat_map(|item| item.look()).collect();
        match self.transact(operations).await {
            Err(error) => fail(&mut batch, &error),
            Ok(answers) => {
                let mut answers = answers.into_iter();
                for item in batch {
                    if let Err(error) = item.seen(&mut answers) {
                        item.answer = Some(Err(error));
                    }
                }
            }
        }
    }

    /// Moves the entries that need another lease than they are on.
    async fn move_over(&self, work: &mut [Work<'_>]) {
        let mut moving: Vec<_> = work.iter_mut().filter(|item| item.open() && item.moves()).collect();
        // Released meanwhile: it must not be asked for again.
        for item in &mut moving {
            let (holder, known) = (item.renewal.ticket.holder, item.known.is_some());
            if known && self.entries.get(holder).is_none() {
                item.not_held();
            }
        }
        moving.retain(|item| item.open());
        let batches = moving.chunks_mut(OPERATIONS).map(|batch| self.move_batch(batch));
        join_all(batches).await;
    }

    async fn move_batch(&self, batch: &mut [&mut Work<'_>]) {
        let mut targets: HashMap<i64, Arc<Lease>> = HashMap::new();
        for target in batch.iter().filter_map(|item| item.target.as_ref()) {
            targets.insert(target.id, Arc::clone(target));
        }
        let lives = join_all(targets.values().map(|lease| async { (lease.id, self.refresh(lease).await) }));
        let operations: Vec<_> = batch.iter().filter_map(|item| item.shift()).collect();
        let (lives, answer) = tokio::join!(lives, self.transact(operations));
        let answers = match answer {
            Ok(answers) => answers,
            Err(error) => {
                targets.values().for_each(|lease| lease.retire());
                return batch.iter_mut().for_each(|item| item.answer = Some(Err(error.clone())));
            }
        };
        let lives: HashMap<i64, Result<Life>> = lives.into_iter().collect();
        let mut answers = answers.into_iter();
        for item in batch {
            let Some(target) = item.target.clone() else { continue };
            let number = item.number.unwrap_or_default();
            let moved = moved_by(answers.next().flatten(), &item.key, number, &target);
            match (moved, lives.get(&target.id)) {
                (Ok(true), Some(Ok(Life::Kept))) => item.on = target.id,
                (Ok(true), Some(Err(error))) => item.answer = Some(Err(error.clone())),
                (Ok(_), _) => item.not_held(),
                (Err(error), _) => item.answer = Some(Err(error)),
            }
        }
    }

    /// One transaction without conditions.
    async fn transact(&self, operations: Vec<TxnOp>) -> Result<Vec<Option<PbTxnOpResponse>>> {
        let count = operations.len();
        let call = |client: Client| {
            let txn = Txn::new().and_then(operations.clone());
            async move { kv(&client).txn(txn).await }
        };
        let answer = match self.members.request(call).await {
            Ok(answer) => answer.0,
            Err(Failure::LeaseGone) => return Err(Failure::LeaseGone.into()),
            Err(Failure::Other(error)) => return Err(error.during("renew")),
        };
        if answer.responses.len() != count {
            return Err(protocol("etcd left out a part of its answer"));
        }
        Ok(answer.responses.into_iter().map(|part| part.response).collect())
    }

    fn finish(&self, work: Work<'_>) -> Result<Renewed> {
        let Work { renewal, number, target, held, answer, key, .. } = work;
        let holder = renewal.ticket.holder;
        match answer {
            Some(Ok(answer)) => {
                if let Some(number) = number {
                    self.entries.forget(holder, number);
                }
                return Ok(answer);
            }
            Some(Err(error)) => return Err(error),
            None => {}
        }
        let (Some(lease), Some(number)) = (target, number) else {
            return Err(protocol("an entry was renewed without a number"));
        };
        let (delay, ends) = (renewal.ticket.delay, ends(self.clock.now(), &lease, renewal.ticket.delay));
        let (token, lasts) = (FencingToken::new(number)?, lease.lasts(delay));
        let fresh = Entry { key, number, lease: Arc::clone(&lease), held, ends };
        let change = |entry: &mut Entry| {
            let held = entry.held || held;
            *entry = Entry { held, ..fresh.clone() };
        };
        if !self.entries.change(holder, number, change) && work.known.is_none() {
            self.entries.put(holder, fresh);
        }
        Ok(match held {
            true => Renewed::Held(Grant { token, lease: lasts }),
            false => Renewed::Waiting(Place { token, lease: lasts, retry_after: None }),
        })
    }
}

impl Work<'_> {
    /// What to read for it.
    fn look(&self) -> Vec<TxnOp> {
        if self.held {
            return vec![look_op(&self.key)];
        }
        vec![look_op(&self.key), read_op(&self.span, self.number)]
    }

    /// Takes what was read for it.
    fn seen(&mut self, answers: &mut impl Iterator<Item = Option<PbTxnOpResponse>>) -> Result<()> {
        let mut next = || match answers.next().flatten() {
            Some(PbTxnOpResponse::ResponseRange(range)) => Ok(range),
            _ => Err(protocol("etcd left out a reading")),
        };
        let own = next()?.kvs.into_iter().next();
        let line = if self.held { None } else { Some(next()?) };
        let number = self.number;
        let Some(own) = own.filter(|kv| number.is_none_or(|number| number == kv.create_revision)) else {
            self.not_held();
            return Ok(());
        };
        self.number = Some(own.create_revision);
        self.on = own.lease;
        if let Some(line) = line {
            let line = seats(&self.span, line);
            let (place, holders) =
                place_of(&line, &self.key).ok_or_else(|| protocol("a line without its entry"))?;
            self.held = place < holders;
        }
        Ok(())
    }

    /// The move it needs.
    fn shift(&self) -> Option<TxnOp> {
        Some(move_op(&self.key, self.number?, self.on, self.target.as_ref()?))
    }
}

fn fail(batch: &mut [&mut Work<'_>], error: &Error) {
    for item in batch {
        item.answer = Some(Err(error.clone()));
    }
}
