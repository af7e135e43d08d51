//! What an acquisition under way has learned: of the line, of its entry and of what failed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::shared::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::snapshot::EntryView;
use crate::token::FencingToken;
use crate::toolkit::Mutex;

/// What an acquisition has learned of the store, for a caller whose time runs out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<ProgressState>);

#[derive(Debug, Default)]
struct ProgressState {
    learned: Mutex<Learned>,
    changed: Notify,
}

#[derive(Clone, Debug, Default)]
struct Learned {
    others_ahead: bool,
    /// The number of the entry that waits.
    token: Option<FencingToken>,
    position: Option<usize>,
    failure: Option<Error>,
}

impl Progress {
    /// The store, or this client for an owner, has said that others are ahead.
    pub(super) fn others_ahead(&self) {
        self.0.learned.lock().others_ahead = true;
        self.0.changed.notify_waiters();
    }

    /// Learns what another one of its owner has, whose acquisition it shares.
    pub(super) fn follow(&self, other: &Self) {
        let theirs = other.0.learned.lock().clone();
        if theirs.others_ahead {
            self.waits(theirs.token);
        }
        if let Some(failure) = theirs.failure {
            self.failed(failure);
        }
    }

    pub(super) fn waits(&self, token: Option<FencingToken>) {
        self.0.learned.lock().token = token;
        self.others_ahead();
    }

    /// Waits until others are known to be ahead.
    pub(crate) async fn is_behind(&self) {
        let others = self.0.changed.notified();
        if !self.0.learned.lock().others_ahead {
            others.await;
        }
    }

    /// How many were ahead when that was first known.
    pub(crate) fn position(&self) -> Option<usize> {
        self.0.learned.lock().position
    }

    /// Asks for the line: how many are ahead, and who holds.
    pub(crate) async fn look(&self, client: &Client, name: &LockName) -> Result<(usize, Vec<EntryView>)> {
        let line = client.inspect(name.clone()).await?;
        let token = self.0.learned.lock().token;
        let before = |entry: &&EntryView| token.is_none_or(|token| entry.token < token);
        let ahead = line.foreign.len() + line.holders.iter().chain(&line.waiters).filter(before).count();
        self.0.learned.lock().position.get_or_insert(ahead);
        Ok((ahead, line.holders))
    }

    pub(super) fn failed(&self, error: Error) {
        self.0.learned.lock().failure = Some(error);
    }

    /// The answer when the time is over: `Ok` where others are known to be ahead, else the last error.
    pub(super) fn timed_out(&self, timeout: Duration) -> Result<()> {
        let learned = self.0.learned.lock();
        if learned.others_ahead {
            return Ok(());
        }
        let text = format!("the store has not said within {timeout:?} whether the lock is free");
        let error = Error::new(ErrorKind::Timeout, text).during("acquire");
        Err(learned.failure.iter().cloned().fold(error, Error::caused_by))
    }
}
