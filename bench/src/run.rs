//! A run: every workload on every subject, taking turns.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use crate::data::{FORMAT, LeftOut, Metric, Outcome, Run};
use crate::machine::machine;
use crate::measure::{Latencies, Sample, figure};
use crate::subject::{Failure, Subject};
use crate::workload::{self, Effort, Size, Workload};

/// What is to be run.
pub struct Plan {
    /// On what.
    pub subjects: Vec<Arc<dyn Subject>>,
    /// Which workloads, in this order.
    pub workloads: Vec<Box<dyn Workload>>,
    /// How often each of them runs on each subject, but for those of which one round is enough.
    pub rounds: u32,
    /// How much work a sample is.
    pub effort: Effort,
    /// What was left out before it began.
    pub left_out: Vec<LeftOut>,
}

/// A plan that cannot be run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadPlan {
    /// There is no such workload.
    UnknownWorkload(String),
    /// Two subjects have this id.
    SameId(String),
    /// There is nothing to run, or nothing to run it on.
    Empty,
}

impl fmt::Display for BadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownWorkload(id) => {
                let all = workload::all();
                let known: Vec<_> = all.iter().map(|workload| workload.id()).collect();
                write!(f, "there is no workload {id:?}; there are: {}", known.join(", "))
            }
            Self::SameId(id) => write!(f, "two subjects are called {id:?}"),
            Self::Empty => write!(f, "there is nothing to run"),
        }
    }
}

impl std::error::Error for BadPlan {}

/// The workloads of these ids, in the order in which they always run; all of them when there are no ids.
///
/// # Errors
/// [`BadPlan::UnknownWorkload`].
pub fn workloads(ids: &[String]) -> Result<Vec<Box<dyn Workload>>, BadPlan> {
    let mut all = workload::all();
    if let Some(id) = ids.iter().find(|id| !all.iter().any(|workload| workload.id() == **id)) {
        return Err(BadPlan::UnknownWorkload(id.clone()));
    }
    all.retain(|workload| ids.is_empty() || ids.iter().any(|id| id == workload.id()));
    Ok(all)
}

/// When to end before everything is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Not yet.
    Never,
    /// After the present sample.
    Soon,
    /// At once; the present sample is lost.
    Now,
}

/// What begins now.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// How many samples have been taken.
    pub done: usize,
    /// How many there are in all.
    pub all: usize,
    /// The workload.
    pub workload: &'a str,
    /// Its size.
    pub size: &'a str,
    /// The subject's id.
    pub subject: &'a str,
}

impl Plan {
    fn check(&self) -> Result<(), BadPlan> {
        if self.subjects.is_empty() || self.workloads.is_empty() || self.rounds == 0 {
            return Err(BadPlan::Empty);
        }
        let mut ids: Vec<_> = self.subjects.iter().map(|subject| &subject.info().id).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|two| two.first() == two.last()).and_then(|two| two.first()) {
            Some(id) => Err(BadPlan::SameId((*id).clone())),
            None => Ok(()),
        }
    }

    /// The subjects that can do it, and why others cannot.
    fn able(&self, workload: &dyn Workload, size: &Size) -> (Vec<Arc<dyn Subject>>, Vec<LeftOut>) {
        let needs = workload.needs(size);
        let (mut able, mut left_out) = (Vec::new(), Vec::new());
        for subject in &self.subjects {
            match needs.iter().find_map(|need| subject.lacks(*need)) {
                Some(why) => left_out.push(left(workload, size, &**subject, why)),
                None => able.push(Arc::clone(subject)),
            }
        }
        (able, left_out)
    }

    fn rounds_of(&self, workload: &dyn Workload) -> u32 {
        if workload.once() { 1 } else { self.rounds }
    }

    /// Runs it. Rounds are interleaved: within a round each subject has its turn, and every other round goes backwards.
    ///
    /// What a subject fails at is left out for it, with the reason; the rounds that it did before count.
    ///
    /// # Errors
    /// [`BadPlan`], before anything runs.
    ///
    /// # Cancel safety
    /// What was measured is lost. To keep it, say [`Stop`].
    pub async fn run(
        mut self,
        mut stop: watch::Receiver<Stop>,
        mut progress: impl FnMut(Step<'_>),
    ) -> Result<Run, Failure> {
        self.check()?;
        let mut run = Run {
            format: FORMAT,
            began: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            machine: machine(),
            rounds: self.rounds,
            interrupted: false,
            subjects: self.subjects.iter().map(|subject| subject.info().clone()).collect(),
            workloads: self.workloads.iter().map(|workload| workload.info()).collect(),
            outcomes: Vec::new(),
            left_out: std::mem::take(&mut self.left_out),
        };
        let mut todo = Vec::new();
        for workload in &self.workloads {
            for size in workload.sizes(&self.effort) {
                let (able, left_out) = self.able(&**workload, &size);
                run.left_out.extend(left_out);
                todo.push((workload, size, able));
            }
        }
        let turns = |(workload, _, able): &(&Box<dyn Workload>, Size, Vec<_>)| {
            able.len() * self.rounds_of(&***workload) as usize
        };
        let all = todo.iter().map(turns).sum();
        let mut done = 0;
        for item in todo {
            let end = done + turns(&item);
            let (workload, size, able) = item;
            let mut cell =
                Cell { workload: &**workload, size: &size, effort: &self.effort, results: Vec::new() };
            cell.results.resize_with(able.len(), || Ok(Vec::new()));
            for round in 0..self.rounds_of(&**workload) {
                for place in 0..able.len() {
                    let place = if round % 2 == 0 { place } else { able.len() - 1 - place };
                    let Some(subject) = able.get(place) else { continue };
                    // Gives the signal time to arrive, and what the last sample left behind to end.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    run.interrupted |= *stop.borrow() > Stop::Never;
                    if run.interrupted {
                        break;
                    }
                    let (workload, size) = (workload.id(), &*size.name);
                    progress(Step { done, all, workload, size, subject: &subject.info().id });
                    done += 1;
                    let now = async {
                        // Whoever could say it has gone: then nobody will.
                        if stop.wait_for(|stop| *stop == Stop::Now).await.is_err() {
                            std::future::pending::<()>().await;
                        }
                    };
                    tokio::select! {
                        () = cell.take(place, subject) => {}
                        () = now => run.interrupted = true,
                    }
                }
            }
            done = end;
            cell.conclude(&able, &mut run);
        }
        Ok(run)
    }
}

fn left(workload: &dyn Workload, size: &Size, subject: &dyn Subject, why: String) -> LeftOut {
    let (workload, size) = (workload.id().to_owned(), size.name.clone());
    LeftOut { workload, size, subject: subject.info().id.clone(), why }
}

/// A workload of one size on all that can do it.
struct Cell<'a> {
    workload: &'a dyn Workload,
    size: &'a Size,
    effort: &'a Effort,
    /// For each subject: the samples, or those before it failed and why.
    results: Vec<Result<Vec<Sample>, (Vec<Sample>, String)>>,
}

impl Cell<'_> {
    async fn take(&mut self, place: usize, subject: &Arc<dyn Subject>) {
        let Some(result) = self.results.get_mut(place) else { return };
        let Ok(samples) = result else { return };
        match bounded(self.workload.run(subject, self.size, self.effort), self.effort).await {
            Ok(sample) => samples.push(sample),
            Err(error) => *result = Err((std::mem::take(samples), with_causes(&*error))),
        }
    }

    fn conclude(self, subjects: &[Arc<dyn Subject>], run: &mut Run) {
        for (subject, result) in subjects.iter().zip(self.results) {
            let (samples, why) = match result {
                Ok(samples) => (samples, None),
                Err((samples, why)) => (samples, Some(why)),
            };
            let none = samples.is_empty();
            if let Some(why) = why {
                let why = if none { why } else { format!("after {} rounds: {why}", samples.len()) };
                run.left_out.push(left(self.workload, self.size, &**subject, why));
            } else if none {
                run.left_out.push(left(
                    self.workload,
                    self.size,
                    &**subject,
                    "the run was ended before".into(),
                ));
            }
            if !none {
                run.outcomes.push(outcome(self.workload, self.size, &**subject, samples));
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

fn outcome(workload: &dyn Workload, size: &Size, subject: &dyn Subject, samples: Vec<Sample>) -> Outcome {
    let mut rounds: BTreeMap<Metric, Vec<f64>> = BTreeMap::new();
    let mut latencies: Option<Latencies> = None;
    let mut remarks: Vec<String> = Vec::new();
    for mut sample in samples {
        if let Some(more) = &sample.latencies {
            more.figures(&mut sample.figures);
            match &mut latencies {
                // All have the same bounds, so that none can fail to join.
                Some(latencies) => drop(latencies.join(more)),
                None => latencies = Some(more.clone()),
            }
        }
        for (metric, value) in sample.figures {
            rounds.entry(metric).or_default().push(value);
        }
        remarks.extend(sample.remark.filter(|remark| !remarks.contains(remark)));
    }
    Outcome {
        workload: workload.id().to_owned(),
        size: size.name.clone(),
        tasks: size.tasks,
        subject: subject.info().id.clone(),
        figures: rounds.into_iter().filter_map(|(metric, values)| Some((metric, figure(values)?))).collect(),
        latency: latencies.and_then(|latencies| latencies.distribution()),
        remark: (!remarks.is_empty()).then(|| remarks.join("; ")),
    }
}
