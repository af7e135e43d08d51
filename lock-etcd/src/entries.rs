//! The entries this client has in the store: on which leases each one can be, and until when it was renewed.
//!
//! A lease is shared, so an entry that nobody renews any more would live on with the others. The client that keeps the
//! lease alive therefore also takes out its own entries when their time has passed ([`crate::release`]); when it does not
//! run, it keeps nothing alive either, and the store ends them all.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::proto::{PbKeyValue, PbRangeResponse};
use etcd_client::{GetOptions, TxnOp};
use onelock_core::toolkit::Mutex;
use onelock_core::toolkit::in_use::InUse;
use onelock_core::{Error, ErrorKind, HolderId, HolderMap, Mode, Result, Timestamp};
use tokio::sync::Notify;

use crate::keys::{Blocker, Span};
use crate::lease::Lease;
use crate::line;
use crate::watches::View;

/// How often a client looks for entries of its own whose time has passed.
pub(crate) const SWEEP: Duration = Duration::from_millis(250);

/// How often it looks for what a join, or a release that was not answered, may have left.
pub(crate) const AGAIN: Duration = Duration::from_secs(1);

/// How often it looks for entries on its leases that it does not know.
pub(crate) const LOOK: Duration = Duration::from_secs(30);

/// An entry of this client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Own {
    pub(crate) key: Vec<u8>,
    /// Its number; 0 until the join is answered.
    pub(crate) number: i64,
    /// Every lease that its key is on, or can come to be on by a put that was sent; that of the last put is the last.
    pub(crate) leases: Vec<Arc<Lease>>,
    /// The entries that keep it waiting: keys and numbers. `None` while they are not known; empty for good once it holds, since
    /// later ones are behind it.
    pub(crate) ahead: Option<Arc<[Blocker]>>,
    /// What its waits know of those ahead.
    pub(crate) view: Arc<tokio::sync::Mutex<View>>,
    /// A join was sent whose outcome is not known: it may make the entry at any time, again and again.
    pub(crate) unclear: bool,
    /// When it is taken out unless it is renewed; `None` while a join is under way.
    pub(crate) due: Option<Timestamp>,
    /// It is released or has lapsed, and no verb but another acquire brings it back; a renewal where another client has resumed it.
    pub(crate) released: bool,
    /// It is being taken out now.
    taken_out: bool,
}

impl Own {
    pub(crate) fn new(key: Vec<u8>) -> Self {
        Self { key, ..Self::default() }
    }

    pub(crate) fn holds(&self) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| ahead.is_empty())
    }

    /// Reads its key, and what keeps it waiting: a known entry by its key, else the nearest ones ahead. The number of bytes does
    /// not grow with the line.
    pub(crate) fn reads(&self, span: &Span, mode: Mode, options: &GetOptions) -> Vec<TxnOp> {
        let mut reads = vec![line::key_op(&self.key, options.clone())];
        match self.ahead.as_deref() {
            Some([]) => {}
            Some([(key, _)]) => reads.push(line::key_op(key, options.clone())),
            _ if self.number == 0 => {}
            _ => reads.extend(line::ahead_ops(span, mode, Some(self.number), options)),
        }
        reads
    }

    /// Learns what [`Own::reads`] has read: its key, unless it is gone. Where the known one is gone, what keeps it waiting is unknown.
    pub(crate) fn learn(
        &mut self,
        span: &Span,
        mode: Mode,
        answers: Vec<PbRangeResponse>,
    ) -> Option<PbKeyValue> {
        let mut answers = answers.into_iter();
        let own = answers.next().and_then(|answer| line::found(&self.key, answer));
        let own = own.filter(|kv| [0, kv.create_revision].contains(&self.number))?;
        match self.ahead.as_deref() {
            Some([]) => {}
            Some([(key, number)]) => {
                let there = answers.next().and_then(|answer| line::found(key, answer));
                if there.is_none_or(|kv| kv.create_revision != *number) {
                    self.ahead = None;
                }
            }
            _ if self.number == 0 => {}
            _ => {
                let ahead = line::ahead(span, &self.key, answers);
                self.ahead = Some(line::keys_of(line::blockers(mode, ahead)));
            }
        }
        self.number = own.create_revision;
        Some(own)
    }

    /// It can come to be on this lease from now on, too.
    pub(crate) fn rely_on(&mut self, lease: &Arc<Lease>) {
        self.leases.retain(|known| known.id != lease.id);
        self.leases.push(Arc::clone(lease));
    }
}

/// The entries of a client.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    map: Mutex<HolderMap<Own>>,
    /// Notified when there is an entry for the sweep to look at, and when the client ends.
    pub(crate) begun: Notify,
    /// The names that were in use when this client joined them last.
    pub(crate) in_use: InUse,
}

impl Entries {
    /// The entry of a holder, unless it is released.
    pub(crate) fn get(&self, holder: HolderId) -> Option<Own> {
        self.map.lock().get(&holder).filter(|own| !own.released).cloned()
    }

    /// The entry of a holder, also one that is released.
    pub(crate) fn known(&self, holder: HolderId) -> Option<Own> {
        self.map.lock().get(&holder).cloned()
    }

    /// Begins a join: the entry is kept in mind from before anything is sent.
    pub(crate) fn join(&self, holder: HolderId, key: &[u8]) -> Result<()> {
        let mut map = self.map.lock();
        let own = map.entry(holder).or_insert_with(|| Own::new(key.to_vec()));
        if own.taken_out {
            let text = "what an earlier join of this holder has made is being taken out";
            return Err(Error::new(ErrorKind::Unavailable, text).unsent());
        }
        (own.released, own.due) = (false, None);
        // What is known of an earlier entry of this holder is not true of a new one.
        (own.number, own.ahead) = (0, None);
        self.begun.notify_one();
        Ok(())
    }

    /// Puts in an entry that this client did not know.
    pub(crate) fn put(&self, holder: HolderId, own: Own) {
        self.map.lock().insert(holder, Own { taken_out: false, ..own });
        self.begun.notify_one();
    }

    /// Changes an entry that is not released; whether it was there.
    pub(crate) fn change(&self, holder: HolderId, change: impl FnOnce(&mut Own)) -> bool {
        let mut map = self.map.lock();
        let own = map.get_mut(&holder).filter(|own| !own.released);
        own.map(change).is_some()
    }

    /// From now on no verb but another acquire brings it back; it is taken out at `due`.
    pub(crate) fn release(&self, holder: HolderId, due: Timestamp) {
        if let Some(own) = self.map.lock().get_mut(&holder) {
            (own.released, own.due) = (true, Some(due));
        }
    }

    /// The store has said that it is not there. Forgotten, unless a join may still make it: then it is looked for again until the
    /// leases are over that it can come to be on.
    pub(crate) fn absent(&self, holder: HolderId, now: Timestamp) {
        let mut map = self.map.lock();
        let Some(own) = map.get_mut(&holder) else { return };
        if !own.unclear || own.leases.iter().all(|lease| lease.is_over(now)) {
            map.remove(&holder);
        } else {
            (own.released, own.due) = (true, Some(now + AGAIN));
        }
    }

    /// An entry has been taken out, or could not be.
    pub(crate) fn taken_out(&self, holder: HolderId) {
        if let Some(own) = self.map.lock().get_mut(&holder) {
            own.taken_out = false;
        }
    }

    /// The entries whose time has passed at `now`, to be taken out: they are released by this.
    pub(crate) fn lapsed(&self, now: Timestamp) -> Vec<(HolderId, Own)> {
        let mut map = self.map.lock();
        let lapsed = map.iter_mut().filter(|(_, own)| own.due.is_some_and(|due| due <= now));
        let release = |(holder, own): (&HolderId, &mut Own)| {
            (own.released, own.taken_out) = (true, true);
            (*holder, own.clone())
        };
        lapsed.map(release).collect()
    }

    /// Keys on a lease of this client. One that it does not know comes from a state of the store that was restored, and is taken out
    /// when the lease is over once: another client that had resumed it has as a rule moved it to a lease of its own by then.
    pub(crate) fn found(&self, lease: &Arc<Lease>, keys: Vec<Vec<u8>>, now: Timestamp) {
        let mut map = self.map.lock();
        for key in keys {
            let digits = key.last_chunk::<32>().and_then(|digits| std::str::from_utf8(digits).ok());
            let Some(holder) = digits.and_then(HolderId::from_hex) else { continue };
            let (leases, due) = (vec![Arc::clone(lease)], Some(now + lease.granted));
            map.entry(holder).or_insert_with(|| Own { leases, due, released: true, ..Own::new(key) });
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.lock().is_empty()
    }

    /// Forgets all; the leases that living ones can be on.
    pub(crate) fn take_all(&self) -> Vec<i64> {
        let all = std::mem::take(&mut *self.map.lock());
        let living = all.into_values().filter(|own| !own.released && own.number > 0);
        living.flat_map(|own| own.leases).map(|lease| lease.id).collect()
    }
}
