//! Renewing: keep the leases alive, then see that the keys are there, and move entries to the lease they need.
//!
//! A living lease proves nothing about a key that was evicted, so every renewal sees the key itself: held entries by
//! their own key, waiting ones by their line, which also repairs a wake-up that was lost. An entry
//! that has come to hold moves from the lease of a waiter to that of a holder; the move sees the key by its guard.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::proto::PbTxnOpResponse;
use etcd_client::{Client, Txn, TxnOp};
use futures_util::future::join_all;
use lock_core::mode::holders;
use lock_core::{FencingToken, Grant, Place, Renewal, Renewed, Result};

use crate::acquire::{move_op, moved_by};
use crate::backend::Shared;
use crate::entries::{Entry, ends};
use crate::error::{Failure, protocol};
use crate::keys::{Seat, Span};
use crate::lease::{Lease, Life};
use crate::lines::{kv, look_op, read_op, seats, whole};

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
            let made = match found.entry((lease, delay)) {
                MapEntry::Occupied(made) => made.into_mut(),
                MapEntry::Vacant(place) => place.insert(self.leases.get(lease, delay).await),
            };
            match made {
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
        let each =
            leases.values().map(|lease| async { (lease.id, lease.keep_alive(self.leases.means()).await) });
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

    /// Reads the keys of holders, and for waiters their lines, each once.
    async fn see_keys(&self, work: &mut [Work<'_>]) {
        let mut looks: Vec<Look> = Vec::new();
        let mut lines: HashMap<Vec<u8>, usize> = HashMap::new();
        for (i, item) in work.iter().enumerate().filter(|(_, item)| item.open()) {
            match item.held {
                // The guard of a move sees the key.
                true if item.moves() => {}
                true => looks.push(Look::Key(i)),
                false => {
                    let at = *lines.entry(item.span.start.clone()).or_insert_with(|| {
                        looks.push(Look::Line(Vec::new()));
                        looks.len() - 1
                    });
                    if let Some(Look::Line(items)) = looks.get_mut(at) {
                        items.push(i);
                    }
                }
            }
        }
        let batches = looks.chunks(OPERATIONS).map(|looks| {
            let operations = looks.iter().map(|look| look.operation(work)).collect();
            async move { (looks, self.transact(operations).await) }
        });
        for (looks, answer) in join_all(batches).await {
            let mut answers = answer.map(Vec::into_iter);
            for look in looks {
                let seats = match &mut answers {
                    Ok(answers) => look.read(answers.next().flatten(), work),
                    Err(error) => Err(error.clone()),
                };
                look.tell(seats, work);
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
        while !moving.is_empty() {
            // A transaction takes each key once.
            let mut keys = HashSet::new();
            let (mut now, later) =
                moving.into_iter().partition::<Vec<_>, _>(|item| keys.insert(item.key.clone()));
            join_all(now.chunks_mut(OPERATIONS).map(|batch| self.move_batch(batch))).await;
            moving = later;
        }
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
        let call = |client: Arc<Client>| {
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

/// One reading: of one key, or of one line for all who wait in it. Of all of it: only then etcd's count tells whether an
/// entry is missing from the answer.
enum Look {
    Key(usize),
    Line(Vec<usize>),
}

impl Look {
    fn items(&self) -> &[usize] {
        match self {
            Self::Key(item) => std::slice::from_ref(item),
            Self::Line(items) => items,
        }
    }

    fn operation(&self, work: &[Work<'_>]) -> TxnOp {
        match self {
            Self::Key(item) => look_op(&work[*item].key),
            Self::Line(items) => read_op(&work[items[0]].span),
        }
    }

    fn read(&self, answer: Option<PbTxnOpResponse>, work: &[Work<'_>]) -> Result<Vec<Seat>> {
        match answer {
            Some(PbTxnOpResponse::ResponseRange(range)) => {
                let span = &work[self.items()[0]].span;
                if matches!(self, Self::Line(_)) { whole(span, range) } else { seats(span, range) }
            }
            _ => Err(protocol("etcd left out a reading")),
        }
    }

    /// Tells those it was made for.
    fn tell(&self, seen: Result<Vec<Seat>>, work: &mut [Work<'_>]) {
        let line = match seen {
            Ok(line) => line,
            Err(error) => {
                return self.items().iter().for_each(|i| work[*i].answer = Some(Err(error.clone())));
            }
        };
        let holders = holders(line.iter().map(|seat| seat.mode));
        let places: HashMap<&[u8], usize> =
            line.iter().enumerate().map(|(place, seat)| (&seat.key[..], place)).collect();
        for i in self.items() {
            let item = &mut work[*i];
            let place = places.get(&item.key[..]).copied();
            let number = item.number;
            match place.filter(|place| number.is_none_or(|number| number == line[*place].number)) {
                None => item.not_held(),
                Some(place) => {
                    item.number = Some(line[place].number);
                    item.on = line[place].lease;
                    item.held |= place < holders;
                }
            }
        }
    }
}

impl Work<'_> {
    /// The move it needs.
    fn shift(&self) -> Option<TxnOp> {
        Some(move_op(&self.key, self.number?, self.on, self.target.as_ref()?))
    }
}
