//! The entries of this client.
//!
//! A session keeps all its nodes alive as long as the process lives. A lease is about one entry: when nobody has renewed
//! it for its time, this client deletes its node, as a store with leases of its own would. The session is for the case
//! that this client cannot.
//!
//! An entry is here from before its node is asked for, so that what an answer that was lost has left is found again.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use onelock_core::toolkit::Mutex;
use onelock_core::toolkit::in_use::InUse;
use onelock_core::{FencingToken, HolderId, HolderMap, Request, Timestamp};
use tokio::sync::OwnedSemaphorePermit;
use zookeeper_client as zk;

use crate::keys::Paths;
use crate::line::Stand;
use crate::session::{Room, Session};

/// What a watch that is set will bring.
pub(crate) type Watch = Pin<Box<dyn Future<Output = zk::WatchedEvent> + Send>>;

/// One entry of this client.
pub(crate) struct Entry {
    pub(crate) holder: HolderId,
    pub(crate) paths: Paths,
    pub(crate) session: Arc<Session>,
    /// Whether it has a lock-delay.
    delayed: bool,
    /// For the path of the node.
    _room: OwnedSemaphorePermit,
    /// What a wait has set, kept for the next one: a wait is dropped and made anew at every renewal.
    pub(crate) watch: tokio::sync::Mutex<Option<Watch>>,
    state: Mutex<State>,
}

struct State {
    node: Option<Node>,
    /// Whether its join was answered. Until then its node may be one whose epoch nobody has compared.
    joined: bool,
    /// When its lease ends, lock-delay included; nothing when it is over.
    ends: Option<Timestamp>,
    /// Nothing when the line is to be read.
    stand: Option<Stand>,
}

/// The node of an entry.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) path: String,
    pub(crate) token: FencingToken,
    /// It was made with the node of the name, so that one may go with it.
    pub(crate) alone: bool,
}

impl Entry {
    pub(crate) fn new(request: &Request, paths: Paths, (session, room): Room, ends: Timestamp) -> Arc<Self> {
        let (holder, delayed) = (request.holder, !request.delay.is_zero());
        let state = Mutex::new(State { node: None, joined: false, ends: Some(ends), stand: None });
        Arc::new(Self {
            holder,
            paths,
            session,
            delayed,
            _room: room,
            watch: tokio::sync::Mutex::default(),
            state,
        })
    }

    /// Its node, once its join was answered.
    pub(crate) fn node(&self) -> Option<Node> {
        let state = self.state.lock();
        state.node.clone().filter(|_| state.joined)
    }

    /// The node that its join has made, as far as that is known.
    pub(crate) fn made(&self) -> Option<Node> {
        self.state.lock().node.clone()
    }

    /// Notes the node that was made; `None` when that is deleted and another may be made.
    pub(crate) fn set_node(&self, node: Option<Node>) {
        self.state.lock().node = node;
    }

    /// How it stands; nothing when the line is to be read.
    pub(crate) fn stand(&self) -> Option<Stand> {
        self.state.lock().stand.clone()
    }

    /// Notes how it stands; whether it holds by that. What holds does so until it is gone.
    pub(crate) fn set_stand(&self, stand: Option<Stand>) -> bool {
        let mut state = self.state.lock();
        let waited = state.stand != Some(Stand::Held);
        if waited {
            state.stand = stand;
        }
        waited && state.stand == Some(Stand::Held)
    }

    /// Lets its lease end at `ends`, or when it ends now if that is later and not the time that its join had; false when it is
    /// over already.
    pub(crate) fn keep_until(&self, ends: Timestamp) -> bool {
        let mut state = self.state.lock();
        let first = !std::mem::replace(&mut state.joined, true);
        state.ends = state.ends.map(|now| if first { ends } else { ends.max(now) });
        state.ends.is_some()
    }

    /// Its lease is over: what is in the map still is taken for lapsed, and its node deleted.
    pub(crate) fn end(&self) {
        self.state.lock().ends = None;
    }

    /// Whether its lease goes on after `now`. If not it is over from here on.
    fn lives(&self, now: Timestamp) -> bool {
        let mut state = self.state.lock();
        state.ends = state.ends.filter(|ends| *ends > now);
        state.ends.is_some()
    }
}

/// All entries of a client.
#[derive(Default)]
pub(crate) struct Entries {
    map: Mutex<HolderMap<Arc<Entry>>>,
    /// Names whose node was there when it was to be made: their next join does not try to make it.
    pub(crate) in_use: InUse,
    /// Holders of entries that are over, while their nodes are being deleted.
    pub(crate) leaving: Arc<Mutex<HolderMap<()>>>,
}

impl Entries {
    /// The entry, unless its lease is over at `now`.
    pub(crate) fn get(&self, holder: HolderId, now: Timestamp) -> Option<Arc<Entry>> {
        self.map.lock().get(&holder).filter(|entry| entry.lives(now)).cloned()
    }

    pub(crate) fn insert(&self, entry: &Arc<Entry>) {
        self.map.lock().insert(entry.holder, Arc::clone(entry));
    }

    /// Forgets an entry.
    pub(crate) fn remove(&self, entry: &Arc<Entry>) {
        let mut entries = self.map.lock();
        // Not before, or it is deleted once more.
        entry.end();
        if entries.get(&entry.holder).is_some_and(|other| Arc::ptr_eq(other, entry)) {
            entries.remove(&entry.holder);
        }
    }

    /// Whether a holder has an entry whose lease is over, or whose node is being deleted.
    pub(crate) fn has_lapsed(&self, holder: HolderId) -> bool {
        let map = self.map.lock();
        map.contains_key(&holder) || self.leaving.lock().contains_key(&holder)
    }

    /// Forgets all but those with a lock-delay, which runs to its end also when the client closes. The sessions of these. A join
    /// under way holds nothing yet.
    pub(crate) fn clear(&self) -> Vec<Arc<Session>> {
        let mut map = self.map.lock();
        map.extract_if(|_, entry| !entry.delayed || entry.node().is_none())
            .for_each(|(_, entry)| entry.end());
        map.values().map(|entry| Arc::clone(&entry.session)).collect()
    }

    /// What the paths of their nodes begin with.
    pub(crate) fn stems(&self) -> HashSet<String> {
        self.map.lock().values().map(|entry| entry.paths.stem.clone()).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.lock().is_empty()
    }

    /// Takes out the entries whose leases are over at `now`: they are leaving.
    pub(crate) fn expired(&self, now: Timestamp) -> Vec<Arc<Entry>> {
        let mut map = self.map.lock();
        let over: Vec<_> = map.extract_if(|_, entry| !entry.lives(now)).map(|(_, entry)| entry).collect();
        self.leaving.lock().extend(over.iter().map(|entry| (entry.holder, ())));
        over
    }
}
