//! What the events of a trial say about the promises.

use std::collections::{BTreeMap, HashMap, HashSet};

use lock_core::Mode;
use serde::{Deserialize, Serialize};

use super::Plan;
use super::crew::Crew;
use super::event::{self, Event, How};
use super::resource::Resource;
use crate::history::{self, Hold, Violation};
use crate::verdict::{Context as _, Verdict};

/// What a trial found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Findings {
    /// Holds that were written down.
    pub holds: u64,
    /// Full cycles: released, and the store confirmed it.
    pub cycles: u64,
    /// Holds that were lost before they were given back.
    pub lost: u64,
    /// Acquires that were dropped under way.
    pub cut: u64,
    /// Acquires that failed, by kind.
    pub failed: BTreeMap<String, u64>,
    /// Calls to the store.
    pub calls: u64,
    /// Calls whose failure left open whether the store had acted.
    pub unclear: u64,
    /// Faults, by kind.
    pub faults: BTreeMap<String, u64>,
    /// How late losses were told, in milliseconds, sorted; only of clients that could run all the time.
    pub lateness: Vec<f64>,
    /// Writes to the resource.
    pub writes: u64,
    /// Writes that the resource refused for their token.
    pub refused: u64,
    /// Writes that it took and that are not in it.
    pub fenced_lost: u64,
    /// Writes that are not in its twin, which does not look at tokens.
    pub unfenced_lost: u64,
    /// Violations, as readable timelines.
    pub violations: Vec<String>,
    /// What was taken by the resource, and all that was written.
    #[serde(skip)]
    written: (HashSet<u64>, HashSet<u64>),
}

impl Findings {
    /// The `p`-th percentile of the lateness, in milliseconds; `None` when no loss was told.
    #[must_use]
    pub fn late(&self, p: usize) -> Option<f64> {
        self.lateness.get((self.lateness.len() * p / 100).min(self.lateness.len().saturating_sub(1))).copied()
    }

    /// Compares what was written with what is there.
    pub(super) fn resource(&mut self, resource: &Resource) {
        let (fenced, unfenced, refused) = resource.contents();
        let (taken, all) = &self.written;
        self.writes = all.len() as u64;
        self.refused = refused;
        self.fenced_lost = taken.difference(&fenced).count() as u64;
        self.unfenced_lost = all.difference(&unfenced).count() as u64;
    }
}

/// A client may be told late because it could not run; this long after it could again, it has no excuse.
const GRACE: u64 = 100_000_000;

/// Reads all journals and looks for violations.
///
/// # Errors
/// When a journal cannot be read.
pub fn judge(crew: &Crew, plan: &Plan, pauses: &[Vec<(u64, u64)>]) -> Verdict<Findings> {
    let mut findings = Findings::default();
    let mut holds = Vec::new();
    for (client, pauses) in crew.clients().iter().zip(pauses) {
        for path in client.journals() {
            // A client may be killed before it has written anything.
            if !path.exists() {
                continue;
            }
            holds.extend(of_one(client.number(), &event::read(&path)?, pauses, &mut findings)?);
        }
    }
    findings.lateness.sort_by(f64::total_cmp);
    findings.holds = holds.len() as u64;
    findings.violations.extend(violations(&holds, plan).iter().map(ToString::to_string));
    Ok(findings)
}

/// The holds in one journal; everything else is counted.
fn of_one(
    client: u32,
    events: &[Event],
    pauses: &[(u64, u64)],
    findings: &mut Findings,
) -> Verdict<Vec<Hold>> {
    let mut holds: HashMap<u64, Hold> = HashMap::new();
    for event in events {
        match event {
            Event::Held { hold, lock, mode, token, asked, from } => {
                let mode: Mode = mode.parse()?;
                let (lock, token, asked, from) = (*lock, *token, *asked, *from);
                holds.insert(*hold, Hold { lock, client, mode, token, asked, from, until: from });
            }
            Event::Seen { hold, at } => holds.get_mut(hold).context("a hold that never began")?.until = *at,
            Event::Over { hold, until, how } => {
                let hold = holds.get_mut(hold).context("a hold that never began")?;
                hold.until = hold.until.max(*until);
                findings.cycles += u64::from(*how == How::Released);
                findings.lost += u64::from(*how == How::Lost);
            }
            Event::Told { deadline, at } => {
                let excused = pauses.iter().any(|(from, to)| *from <= *at && *deadline <= to + GRACE);
                if !excused {
                    findings.lateness.push(at.saturating_sub(*deadline) as f64 / 1e6);
                }
            }
            Event::Failed { kind } => *findings.failed.entry(kind.clone()).or_default() += 1,
            Event::Calls { calls, unclear } => {
                findings.calls += calls;
                findings.unclear += unclear;
            }
            Event::Cut => findings.cut += 1,
            Event::Wrote { item, taken } => {
                findings.written.1.insert(*item);
                if *taken {
                    findings.written.0.insert(*item);
                }
            }
        }
    }
    Ok(holds.into_values().collect())
}

/// The first violation of each kind.
fn violations(holds: &[Hold], plan: &Plan) -> Vec<Violation> {
    let mut found: Vec<_> = history::exclusion(holds).into_iter().collect();
    if plan.fencing {
        found.extend(history::tokens(holds));
    }
    if plan.fencing && plan.fifo {
        // Holders that hold together learn of it in any order.
        let mixed: HashSet<u32> =
            holds.iter().filter(|hold| hold.mode != Mode::Exclusive).map(|hold| hold.lock).collect();
        let plain: Vec<_> = holds.iter().filter(|hold| !mixed.contains(&hold.lock)).copied().collect();
        found.extend(history::fifo(&plain));
    }
    found
}
