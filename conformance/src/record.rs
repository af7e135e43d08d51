//! What a run of a case leaves behind for machines to read: one JSON line, appended to the file that `ONELOCK_RECORD`
//! names.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use onelock_core::toolkit::{Layer, Layered, Mutex};
use onelock_core::{Backend, Error, Renewal, Renewed, Result, Ticket, Wake};
use serde::{Deserialize, Serialize};

use crate::runner::Extent;
use crate::trial::judge::Findings;
use crate::verdict::{Context as _, Stop, Verdict};

/// How one run of a case went.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The kind of store.
    pub store: String,
    /// The case.
    pub case: String,
    /// What replays its random choices.
    pub seed: u64,
    /// What its volumes were multiplied by.
    pub volume: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, if it did not pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How long it took.
    pub seconds: f64,
    /// Full cycles of acquire, hold and release.
    pub cycles: u64,
    /// Calls to the store.
    pub calls: u64,
    /// Calls whose failure left open whether the store had acted.
    pub unclear: u64,
    /// Faults, by kind.
    pub faults: BTreeMap<String, u64>,
    /// What a trial found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial: Option<Findings>,
}

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The store kept its promises.
    Passed,
    /// It did not.
    Failed,
    /// There was nothing to prove.
    Ignored,
}

impl Record {
    /// Appends it to the file at `path`.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn append(&self, path: &Path) -> Verdict {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        let file = File::options().create(true).append(true).open(path);
        // One write: several cases end at once.
        file.and_then(|mut file| file.write_all(&line)).context(path.display())
    }

    /// Reads a file of records.
    ///
    /// # Errors
    /// When it cannot be read, or has something else in it.
    pub fn read(path: &Path) -> Verdict<Vec<Self>> {
        let text = std::fs::read_to_string(path).context(path.display())?;
        text.lines().map(|line| serde_json::from_str(line).context(path.display())).collect()
    }
}

/// What is counted while a case runs.
#[derive(Debug, Default)]
pub struct Notes {
    cycles: AtomicU64,
    calls: AtomicU64,
    unclear: AtomicU64,
    trial: Mutex<Option<Findings>>,
}

impl Notes {
    /// Counts full cycles of acquire, hold and release.
    pub fn cycles(&self, count: u64) {
        self.cycles.fetch_add(count, Ordering::Relaxed);
    }

    /// Keeps what a trial found.
    pub fn trial(&self, findings: &Findings) {
        *self.trial.lock() = Some(findings.clone());
    }

    /// How many calls there were since the last time, and how many of them ended unclear.
    #[must_use]
    pub fn take(&self) -> (u64, u64) {
        (self.calls.swap(0, Ordering::Relaxed), self.unclear.swap(0, Ordering::Relaxed))
    }

    /// A record of a case that ended.
    #[must_use]
    pub fn record(&self, id: (&str, &str), extent: Extent, verdict: &Verdict, took: Duration) -> Record {
        let trial = self.trial.lock().take();
        let faults = trial.as_ref().map_or_else(BTreeMap::new, |trial| trial.faults.clone());
        let (outcome, why) = match verdict {
            Ok(()) => (Outcome::Passed, None),
            Err(Stop::Failed(why)) => (Outcome::Failed, Some(why.clone())),
            Err(Stop::NotApplicable(why)) => (Outcome::Ignored, Some(why.clone())),
        };
        let (calls, unclear) = trial.as_ref().map_or((0, 0), |trial| (trial.calls, trial.unclear));
        Record {
            store: id.0.to_owned(),
            case: id.1.to_owned(),
            seed: extent.seed,
            volume: extent.volume,
            outcome,
            why,
            seconds: took.as_secs_f64(),
            cycles: self.cycles.load(Ordering::Relaxed) + trial.as_ref().map_or(0, |trial| trial.cycles),
            calls: self.calls.load(Ordering::Relaxed) + calls,
            unclear: self.unclear.load(Ordering::Relaxed) + unclear,
            faults,
            trial,
        }
    }
}

/// A backend that counts its calls.
#[derive(Debug)]
pub(crate) struct Counted {
    inner: Arc<dyn Backend>,
    notes: Arc<Notes>,
}

impl Counted {
    pub(crate) fn new(inner: Arc<dyn Backend>, notes: &Arc<Notes>) -> Arc<Layered<Self>> {
        Arc::new(Layered(Self { inner, notes: Arc::clone(notes) }))
    }

    fn look<T>(&self, answer: &Result<T>) {
        self.notes.calls.fetch_add(1, Ordering::Relaxed);
        if answer.as_ref().is_err_and(Error::is_unclear) {
            self.notes.unclear.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[async_trait]
impl Layer for Counted {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    fn pass<T: Send>(
        &self,
        _verb: &'static str,
        call: impl Future<Output = Result<T>> + Send,
    ) -> impl Future<Output = Result<T>> + Send {
        call.inspect(|answer| self.look(answer))
    }

    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.inner.wait(ticket).await
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let answers = self.inner.renew(due).await;
        answers.iter().for_each(|answer| self.look(answer));
        answers
    }
}
