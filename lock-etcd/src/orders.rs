//! What the stream of watches is to be told: which to open on it, and which to close.

use std::collections::HashMap;
use std::sync::Arc;

use etcd_client::{WatchFilterType, WatchOptions};

use crate::watch::Watch;

/// The watches of one stream, and what it has not been told yet.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    open: Vec<Opening>,
    close: Vec<i64>,
    last_id: i64,
    /// Those that are open, or are to be.
    by_id: HashMap<i64, Arc<Watch>>,
}

/// A watch that is to be opened.
#[derive(Debug)]
pub(crate) struct Opening {
    id: i64,
    pub(crate) start: Vec<u8>,
    pub(crate) options: WatchOptions,
}

impl Orders {
    /// Opens a watch on all that happens in a line from the present on; its number.
    pub(crate) fn line(&mut self, watch: &Arc<Watch>) -> i64 {
        let options = WatchOptions::new().with_range(watch.span.end.clone());
        self.open(watch, watch.span.start.clone(), options)
    }

    /// Opens a watch on all that happens in a line from a later revision on; its number. Until then the server says nothing.
    pub(crate) fn line_from(&mut self, watch: &Arc<Watch>, revision: i64) -> i64 {
        let options = WatchOptions::new().with_range(watch.span.end.clone()).with_start_revision(revision);
        self.open(watch, watch.span.start.clone(), options)
    }

    /// Opens a watch on the end of one entry; its number.
    pub(crate) fn end_of(&mut self, watch: &Arc<Watch>, key: &[u8]) -> i64 {
        let options = WatchOptions::new().with_filters([WatchFilterType::NoPut]);
        self.open(watch, key.to_vec(), options)
    }

    fn open(&mut self, watch: &Arc<Watch>, start: Vec<u8>, options: WatchOptions) -> i64 {
        self.last_id += 1;
        let id = self.last_id;
        self.by_id.insert(id, Arc::clone(watch));
        self.open.push(Opening { id, start, options: options.with_watch_id(id) });
        id
    }

    pub(crate) fn close(&mut self, id: i64) {
        self.by_id.remove(&id);
        let unsent = self.open.len();
        self.open.retain(|opening| opening.id != id);
        if self.open.len() == unsent {
            self.close.push(id);
        }
    }

    /// Whose watch has this number; nobody's once it is to be closed.
    pub(crate) fn watch(&self, id: i64) -> Option<Arc<Watch>> {
        self.by_id.get(&id).cloned()
    }

    /// Whether there is something to tell.
    pub(crate) fn are_due(&self) -> bool {
        !self.open.is_empty() || !self.close.is_empty()
    }

    /// What to open first on a stream that has been told nothing.
    pub(crate) fn first(&mut self) -> Option<Opening> {
        self.open.pop()
    }

    /// What to open and what to close.
    pub(crate) fn take(&mut self) -> (Vec<Opening>, Vec<i64>) {
        (std::mem::take(&mut self.open), std::mem::take(&mut self.close))
    }

    /// Forgets all: the stream is gone, and with it every watch. No number comes again.
    pub(crate) fn clear(&mut self) {
        self.open.clear();
        self.close.clear();
        self.by_id.clear();
    }
}
