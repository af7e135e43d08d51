//! A workload of one size, on every subject that can do it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::data::{LeftOut, Metric, Outcome, Run};
use crate::measure::{Sample, figure};
use crate::subject::{Failure, Subject};
use crate::workload::{Effort, Size, Workload};

pub(super) fn left(workload: &Workload, size: &str, subject: &dyn Subject, why: String) -> LeftOut {
    let (workload, size) = (workload.id.to_owned(), size.to_owned());
    LeftOut { workload, size, subject: subject.info().id.clone(), why }
}

/// A workload of one size on all that can do it.
pub(super) struct Cell<'a> {
    pub(super) workload: &'a Workload,
    pub(super) size: Size,
    effort: &'a Effort,
    pub(super) turnouts: Vec<Turnout>,
}

/// What came of a subject: its samples, and why there are no more.
pub(super) struct Turnout {
    pub(super) subject: Arc<dyn Subject>,
    samples: Vec<Sample>,
    failed: Option<String>,
}

impl<'a> Cell<'a> {
    pub(super) fn new(
        workload: &'a Workload,
        size: Size,
        effort: &'a Effort,
        subjects: Vec<Arc<dyn Subject>>,
    ) -> Self {
        let turnout = |subject| Turnout { subject, samples: Vec::new(), failed: None };
        Self { workload, size, effort, turnouts: subjects.into_iter().map(turnout).collect() }
    }

    /// One more sample of the subject at `place`, unless it has failed before.
    pub(super) async fn take(&mut self, place: usize) {
        let Some(turnout) = self.turnouts.get_mut(place).filter(|turnout| turnout.failed.is_none()) else {
            return;
        };
        match bounded(self.workload.run(&turnout.subject, &self.size, self.effort), self.effort).await {
            Ok(sample) => turnout.samples.push(sample),
            Err(error) => turnout.failed = Some(with_causes(&*error)),
        }
    }

    pub(super) fn conclude(self, run: &mut Run) {
        for Turnout { subject, samples, failed } in self.turnouts {
            let why = match failed {
                Some(why) if samples.is_empty() => Some(why),
                Some(why) => Some(format!("after {} rounds: {why}", samples.len())),
                None => samples.is_empty().then(|| "the run was ended before".into()),
            };
            run.left_out.extend(why.map(|why| left(self.workload, &self.size.name, &*subject, why)));
            if !samples.is_empty() {
                run.outcomes.push(outcome(self.workload, &self.size, &*subject, samples));
            }
        }
    }
}

/// A subject that hangs must not hang the run.
async fn bounded(
    work: impl Future<Output = Result<Sample, Failure>>,
    effort: &Effort,
) -> Result<Sample, Failure> {
    let most = Duration::from_secs(180) + 10 * effort.time + 2 * effort.held.1 + 3 * effort.idle;
    match tokio::time::timeout(most, work).await {
        Ok(done) => done,
        Err(_) => Err(format!("it had not ended after {} s", most.as_secs()).into()),
    }
}

fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(below) = cause {
        let more = below.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = below.source();
    }
    text
}

fn outcome(workload: &Workload, size: &Size, subject: &dyn Subject, samples: Vec<Sample>) -> Outcome {
    let mut rounds: BTreeMap<Metric, Vec<f64>> = BTreeMap::new();
    let mut remarks: Vec<String> = Vec::new();
    for mut sample in samples {
        if let Some(more) = &sample.latencies {
            more.figures(&mut sample.figures);
        }
        for (metric, value) in sample.figures {
            rounds.entry(metric).or_default().push(value);
        }
        remarks.extend(sample.remark.filter(|remark| !remarks.contains(remark)));
    }
    Outcome {
        workload: workload.id.to_owned(),
        size: size.name.clone(),
        tasks: size.tasks,
        subject: subject.info().id.clone(),
        figures: rounds.into_iter().filter_map(|(metric, values)| Some((metric, figure(values)?))).collect(),
        remark: (!remarks.is_empty()).then(|| remarks.join("; ")),
    }
}
