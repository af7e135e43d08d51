//! What the events of a trial say about the promises.

use std::collections::{BTreeMap, HashMap, HashSet};

use onelock_core::Mode;
use serde::{Deserialize, Serialize};

use super::Plan;
use super::crew::Crew;
use super::event::{self, Event, How};
use super::resource::Resource;
use super::work::LEAD;
use crate::history::{self, KnownHold, Violation};
use crate::verdict::{Context as _, Verdict};

/// What a trial found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Findings {
    /// Full cycles: released, and the store confirmed it.
    pub cycles: u64,
    /// Holds that were lost before they were given back.
    pub lost: u64,
    /// Works whose end was judged as the worker saw it.
    pub worked: u64,
    /// Those of them that the end of their hold stopped.
    pub stopped: u64,
    /// Terms of the election, whose work was judged likewise.
    pub terms: u64,
    /// Those of them that were lost under their work.
    pub deposed: u64,
    /// Leaders that observers saw.
    pub observed: u64,
    /// Acquires that were dropped under way.
    pub cut: u64,
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
        let (fenced, unfenced) = resource.lists.contents();
        let (taken, all) = &self.written;
        self.writes = all.len() as u64;
        self.refused = resource.lists.refused();
        self.fenced_lost = taken.difference(&fenced).count() as u64;
        self.unfenced_lost = all.difference(&unfenced).count() as u64;
    }
}

/// Reads all journals and looks for violations.
///
/// # Errors
/// When a journal cannot be read.
pub fn judge(crew: &Crew, plan: &Plan) -> Verdict<Findings> {
    let mut findings = Findings::default();
    let mut holds = Vec::new();
    for client in &crew.clients {
        for path in client.journals() {
            // A client may be killed before it has written anything.
            if !path.exists() {
                continue;
            }
            let events = event::read(&path)?;
            holds.extend(of_one(client.number, &events, &mut findings)?);
            let seen = events.iter().filter_map(|event| match event {
                Event::Led { token } if *token > 0 => Some(*token),
                _ => None,
            });
            let seen: Vec<_> = seen.collect();
            findings.observed += seen.len() as u64;
            // Tokens grow from term to term, so observers that see them grow agree. A quorum, which has no line, shows smaller
            // ones while a member does not answer.
            let ordered = plan.fencing && plan.fifo;
            if let Some(pair) = seen.windows(2).find(|pair| ordered && pair[0] >= pair[1]) {
                let text = format!("client {}: leader {} is seen after {}", client.number, pair[1], pair[0]);
                findings.violations.push(text);
            }
        }
    }
    findings.lateness.sort_by(f64::total_cmp);
    findings.terms = holds.iter().filter(|hold| hold.lock == LEAD).count() as u64;
    findings.violations.extend(violations(&holds, plan).iter().map(ToString::to_string));
    Ok(findings)
}

/// The holds in one journal; everything else is counted.
fn of_one(client: u32, events: &[Event], findings: &mut Findings) -> Verdict<Vec<KnownHold>> {
    // Written when it ran again, which may be after what it was told then.
    let still = |event: &Event| if let Event::Still { from, to } = event { Some((*from, *to)) } else { None };
    let still: Vec<_> = events.iter().filter_map(still).collect();
    let mut holds: HashMap<u64, KnownHold> = HashMap::new();
    for event in events {
        match event {
            Event::Held { hold, lock, mode, token, asked, from } => {
                let mode: Mode = mode.parse()?;
                let (lock, token, asked, from) = (*lock, *token, *asked, *from);
                holds.insert(*hold, KnownHold { lock, client, mode, token, asked, from, until: from });
            }
            Event::Seen { hold, at } => holds.get_mut(hold).context("a hold that never began")?.until = *at,
            Event::Over { hold, until, how } => {
                let hold = holds.get_mut(hold).context("a hold that never began")?;
                hold.until = hold.until.max(*until);
                findings.cycles += u64::from(*how == How::Released);
                findings.lost += u64::from(*how == How::Lost);
            }
            Event::Worked { hold, deadline, until, stopped } => {
                let hold = holds.get_mut(hold).context("a hold that never began")?;
                // Nobody ends its work in time who does not run.
                let ran = !still.iter().any(|(from, to)| from <= until && deadline <= to);
                hold.until = if ran { *until } else { (*until).min(*deadline) }.max(hold.until);
                findings.worked += u64::from(ran);
                findings.stopped += u64::from(ran && *stopped);
            }
            Event::Told { deadline, at } => {
                // Nobody can be told who does not run.
                if !still.iter().any(|(from, to)| from <= at && deadline <= to) {
                    findings.lateness.push(at.saturating_sub(*deadline) as f64 / 1e6);
                }
            }
            Event::Still { .. } | Event::Led { .. } => {}
            Event::Deposed => findings.deposed += 1,
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
fn violations(holds: &[KnownHold], plan: &Plan) -> Vec<Violation> {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn who_did_not_run_is_not_told_late() {
        let told = |deadline, at| Event::Told { deadline, at };
        let ms = |count: u64| count * 1_000_000;
        let events = [
            told(ms(10), ms(13)),
            // It stalled over its deadline, and noted that afterwards.
            told(ms(100), ms(900)),
            Event::Still { from: ms(90), to: ms(899) },
            // It stalled after its deadline.
            told(ms(1_000), ms(1_500)),
            Event::Still { from: ms(1_001), to: ms(1_499) },
            // It ran all the time.
            told(ms(2_000), ms(2_070)),
        ];
        let mut findings = Findings::default();
        of_one(0, &events, &mut findings).unwrap();
        assert_eq!(findings.lateness, [3.0, 70.0]);
    }

    #[test]
    fn work_counts_until_it_ended_where_it_could_end() {
        let held = |hold, from| Event::Held { hold, lock: 10, mode: "x".into(), token: 1, asked: 0, from };
        let worked = |hold, deadline, until| Event::Worked { hold, deadline, until, stopped: true };
        let events = [
            // In time; late; and late because the process stalled at its deadline.
            held(0, 1_000),
            worked(0, 2_000, 1_990),
            held(1, 3_000),
            worked(1, 4_000, 4_500),
            held(2, 5_000),
            worked(2, 6_000, 6_900),
            Event::Still { from: 5_900, to: 6_890 },
        ];
        let mut findings = Findings::default();
        let mut until: Vec<_> =
            of_one(0, &events, &mut findings).unwrap().iter().map(|hold| hold.until).collect();
        until.sort_unstable();
        assert_eq!((until, findings.worked, findings.stopped), (vec![1_990, 4_500, 6_000], 2, 2));
    }
}
