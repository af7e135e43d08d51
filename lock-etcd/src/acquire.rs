//! Joining a line by one flat transaction.
//!
//! It is sent to hold, on the lease of holders, where nobody is against it; where somebody is, it is sent again to wait, on the
//! lease of waiters, and its answer brings those ahead. A line that this client found in use last is joined to wait at once.

use std::sync::Arc;

use etcd_client::proto::PbRangeResponse;
use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp};
use onelock_core::{
    Busy, Error, ErrorKind, FencingToken, Grant, Mode, Place, Renewal, Renewed, Request, Result, Standing,
    TokenEpoch,
};

use crate::entries::Entries;
use crate::error::Failure;
use crate::keys::{Entry, Keys, Span};
use crate::lease::{Lease, Leases};
use crate::line;
use crate::renew;

/// How often a join is sent: others may change what it found, or end its lease, between two of them.
const TRIES: usize = 16;

/// What a join asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// To hold. A permit cannot be counted by the store: nobody may have joined since this revision, when there was room.
    Hold { since: i64 },
    /// To wait behind the entries that are there.
    Wait,
}

const HOLD: Form = Form::Hold { since: 0 };

const BUSY: Standing = Standing::Busy(Busy::new(None));

pub(crate) async fn acquire(
    keys: &Keys,
    leases: &Arc<Leases>,
    entries: &Entries,
    request: &Request,
) -> Result<Standing> {
    let mut join = Join::begin(keys, leases, entries, request)?;
    for _ in 0..TRIES {
        if let Some(standing) = join.attempt().await.map_err(|error| join.failed(error))? {
            return Ok(standing);
        }
    }
    if request.queue {
        return Err(Error::new(ErrorKind::Unavailable, "the line changed at every try to join it"));
    }
    join.is_clear();
    Ok(BUSY)
}

/// A join under way. A try without a clear answer leaves an entry that may come to be at any time: it is taken out when it does,
/// and its leases are closed. A caller that drops it half way, which [`Backend`](onelock_core::Backend) forbids, leaves it to the
/// next look for unknown entries.
struct Join<'a> {
    keys: &'a Keys,
    leases: &'a Arc<Leases>,
    entries: &'a Entries,
    request: &'a Request,
    span: Span,
    key: Vec<u8>,
    form: Form,
    /// Whether the entry is left to its holder.
    done: bool,
}

impl<'a> Join<'a> {
    fn begin(
        keys: &'a Keys,
        leases: &'a Arc<Leases>,
        entries: &'a Entries,
        request: &'a Request,
    ) -> Result<Self> {
        let span = keys.line(&request.name);
        let key = span.entry(request.mode, request.holder);
        entries.join(request.holder, &key)?;
        let in_use = request.queue && entries.in_use.has(&request.name);
        let form = if in_use { Form::Wait } else { HOLD };
        Ok(Self { keys, leases, entries, request, span, key, form, done: false })
    }

    /// Sends it once; `None` where it is to be sent again.
    async fn attempt(&mut self) -> Result<Option<Standing>> {
        let Request { holder, lease: needs, waiter_lease, delay, .. } = *self.request;
        let length = if self.form == Form::Wait { waiter_lease } else { needs };
        let lease = self.leases.get(length, delay).await?;
        // Those that it could be on before, and this one.
        let before = self.entries.get(holder).map(|own| own.leases).unwrap_or_default();
        self.entries.change(holder, |own| own.rely_on(&lease));
        // A lease that was not kept alive lately is, beside the transaction: no round trip more.
        let cluster = &self.leases.cluster;
        let sent = cluster.send_in_turn(&cluster.joins, self.txn(&lease));
        let ((answer, unclear), kept) = tokio::join!(sent, self.leases.refresh(&lease));
        if unclear {
            self.is_unclear();
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(Failure::LeaseGone) => {
                lease.lost();
                return Ok(None);
            }
            Err(failure) => return Err(failure.into()),
        };
        let revision = line::revision(answer.header.as_ref())?;
        if !answer.succeeded {
            if !unclear {
                // It has put nothing on this lease.
                self.entries.change(holder, |own| own.leases = before);
            }
            return self.refused(revision, line::ranges(answer)).await;
        }
        let ahead = match self.form {
            Form::Wait => self.blockers(line::ranges(answer)),
            Form::Hold { .. } => Vec::new(),
        };
        let holds = ahead.is_empty();
        self.entries.in_use.note(&self.request.name, !holds);
        let made = (revision, Some(line::keys_of(ahead)));
        self.entries.change(holder, |own| (own.number, own.ahead) = made);
        // With its lease the entry is gone.
        kept?;
        if lease.is_gone() {
            return Ok(None);
        }
        let (token, lasts) = (FencingToken::new(revision)?, lease.lasts(delay));
        if holds && lasts < needs {
            // It was to wait.
            return self.renewed().await;
        }
        let due = self.leases.now() + lasts + delay;
        self.done = self.entries.change(holder, |own| own.due = Some(due));
        if !self.done {
            let text = "its entry was released meanwhile, or the client closed";
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        Ok(Some(match holds {
            true => Standing::Held(Grant::new(token, lasts)),
            false => Standing::Waiting(Place::new(token, lasts)),
        }))
    }

    /// Reads why a try has made no entry.
    async fn refused(
        &mut self,
        revision: i64,
        mut ranges: impl Iterator<Item = PbRangeResponse>,
    ) -> Result<Option<Standing>> {
        if let Some(kv) = line::found(&self.key, line::next(&mut ranges)?) {
            // Of an earlier try: its place is the answer.
            let made = (kv.create_revision, None);
            self.entries.change(self.request.holder, |own| (own.number, own.ahead) = made);
            return self.renewed().await;
        }
        if let Some(key) = self.keys.epoch() {
            let found = line::found(key.as_bytes(), line::next(&mut ranges)?);
            let newest = found.as_ref().map_or(Ok(TokenEpoch::default()), |kv| epoch_in(&kv.value))?;
            self.request.epoch.check(newest).inspect_err(|_| self.is_clear())?;
            if newest < self.request.epoch {
                // Unless another client has changed it.
                let changed = found.map_or(0, |kv| kv.mod_revision);
                let same = Compare::mod_revision(&*key, CompareOp::Equal, changed);
                let raise = TxnOp::put(&*key, u16::from(self.request.epoch).to_string(), None);
                let txn = Txn::new().when([same]).and_then([raise]);
                self.leases.cluster.send(&txn, &mut false).await?;
                return Ok(None);
            }
        }
        let permit = matches!(self.request.mode, Mode::Permit { .. });
        let room = permit && self.blockers(ranges).is_empty();
        self.form = if self.request.queue && (!room || self.form != HOLD) {
            // Of many that join to hold at once one succeeds at a time; all can join to wait.
            Form::Wait
        } else if room {
            Form::Hold { since: revision }
        } else {
            self.entries.in_use.note(&self.request.name, true);
            self.is_clear();
            return Ok(Some(BUSY));
        };
        Ok(None)
    }

    /// Makes the entry where its key, the epoch and the line allow; else reads why not.
    fn txn(&self, lease: &Lease) -> Txn {
        let (span, key, mode) = (&self.span, &self.key, self.request.mode);
        let empty =
            |part: Span| Compare::create_revision(part.start, CompareOp::Equal, 0).with_range(part.end);
        let mut when = vec![Compare::create_revision(&key[..], CompareOp::Equal, 0)];
        let put = PutOptions::new().with_lease(lease.id);
        let mut then = vec![TxnOp::put(&key[..], self.request.note.as_str(), Some(put))];
        let mut or_else = vec![line::key_op(key, GetOptions::new())];
        if let Some(newest) = self.keys.epoch() {
            when.push(match u16::from(self.request.epoch) {
                0 => Compare::create_revision(newest.clone(), CompareOp::Equal, 0),
                number => Compare::value(newest.clone(), CompareOp::Equal, number.to_string()),
            });
            or_else.push(TxnOp::get(newest, None));
        }
        match (self.form, mode) {
            (Form::Hold { since }, Mode::Permit { .. }) => {
                let older = Compare::create_revision(&span.start[..], CompareOp::Less, since + 1);
                when.push(older.with_range(&span.end[..]));
                or_else.extend(line::ahead_ops(span, mode, None, &GetOptions::new()));
            }
            (Form::Hold { .. }, mode) => when.extend(span.against(mode).into_iter().map(empty)),
            (Form::Wait, mode) => then.extend(line::ahead_ops(span, mode, None, &GetOptions::new())),
        }
        Txn::new().when(when).and_then(then).or_else(or_else)
    }

    fn blockers(&self, ranges: impl Iterator<Item = PbRangeResponse>) -> Vec<Entry> {
        line::blockers(self.request.mode, line::ahead(&self.span, &self.key, ranges))
    }

    /// The error of a try, which says nothing of what this one or those before have made.
    fn failed(&self, error: Error) -> Error {
        let own = self.entries.get(self.request.holder);
        if error.is_unclear() || own.is_none_or(|own| !own.unclear && own.number == 0) {
            return error;
        }
        let text = format!("it may have joined before this: {error}");
        Error::new(ErrorKind::Unavailable, text).caused_by(error)
    }

    fn is_unclear(&self) {
        self.entries.change(self.request.holder, |own| {
            own.unclear = true;
            own.leases.iter().for_each(|lease| lease.close());
        });
    }

    /// Renews the entry: it was there before, or needs another lease. `None` when it is gone.
    async fn renewed(&mut self) -> Result<Option<Standing>> {
        let Request { lease, waiter_lease, .. } = *self.request;
        let renewal = Renewal::new(self.request.ticket(), lease, waiter_lease);
        let mut answers = renew::renew(self.keys, self.leases, self.entries, &[renewal]).await;
        let standing = match answers.pop().unwrap_or(Ok(Renewed::NotHeld))? {
            Renewed::Held(grant) => Standing::Held(grant),
            Renewed::Waiting(place) => Standing::Waiting(place),
            Renewed::NotHeld => {
                self.entries.join(self.request.holder, &self.key)?;
                return Ok(None);
            }
        };
        self.done = true;
        Ok(Some(standing))
    }

    /// There is no entry.
    fn is_clear(&mut self) {
        self.done = true;
        self.entries.absent(self.request.holder, self.leases.now());
    }
}

impl Drop for Join<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.entries.release(self.request.holder, self.leases.now());
        }
    }
}

fn epoch_in(value: &[u8]) -> Result<TokenEpoch> {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    let foreign = || Error::new(ErrorKind::Foreign, "the key of the token epoch has no epoch in it");
    TokenEpoch::new(number.ok_or_else(foreign)?)
}
