//! A run: every workload on every subject, taking turns.

mod cell;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use cell::{Cell, Turnout, left};

use crate::data::{FORMAT, LeftOut, Run};
use crate::machine::machine;
use crate::subject::{Failure, Need, Subject};
use crate::workload::{self, Effort, Size, Workload};

/// What is to be run.
pub struct Plan {
    /// On what.
    pub subjects: Vec<Arc<dyn Subject>>,
    /// Which workloads, in this order.
    pub workloads: Vec<Workload>,
    /// How often each of them runs on each subject, but for those of which one round is enough.
    pub rounds: u32,
    /// How much work a sample is.
    pub effort: Effort,
    /// What was left out before it began.
    pub left_out: Vec<LeftOut>,
}

/// The workloads of these ids, in the order in which they always run; all of them when there are no ids.
///
/// # Errors
/// When there is no such workload.
pub fn workloads(ids: &[String]) -> Result<Vec<Workload>, Failure> {
    let mut all = workload::all();
    if let Some(id) = ids.iter().find(|id| !all.iter().any(|workload| workload.id == **id)) {
        let known: Vec<_> = all.iter().map(|workload| workload.id).collect();
        return Err(format!("there is no workload {id:?}; there are: {}", known.join(", ")).into());
    }
    all.retain(|workload| ids.is_empty() || ids.iter().any(|id| id == workload.id));
    Ok(all)
}

/// The runtime to run on: two workers, as a small service has. With one thread nothing waits for a wake-up of another core.
///
/// # Errors
/// When the system gives no threads.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
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
    fn check(&self) -> Result<(), Failure> {
        if self.subjects.is_empty() || self.workloads.is_empty() || self.rounds == 0 {
            return Err("there is nothing to run".into());
        }
        let mut ids = HashSet::new();
        match self.subjects.iter().find(|subject| !ids.insert(&subject.info().id)) {
            Some(twice) => Err(format!("two subjects are called {:?}", twice.info().id).into()),
            None => Ok(()),
        }
    }

    /// Why a subject cannot do it.
    fn lacks(workload: &Workload, size: &Size, subject: &dyn Subject) -> Option<String> {
        let unfair = (!size.fair).then_some(Need::Unfair);
        workload.needs.iter().copied().chain(unfair).find_map(|need| subject.lacks(need))
    }

    /// The sizes of a workload and who can do them. Who can do none of them is left out in one line.
    fn cells<'a>(&'a self, workload: &'a Workload, left_out: &mut Vec<LeftOut>) -> Vec<Cell<'a>> {
        let sizes = (workload.sizes)(&self.effort);
        for subject in &self.subjects {
            let lacks: Vec<_> = sizes.iter().map(|size| Self::lacks(workload, size, &**subject)).collect();
            if let [Some(first), rest @ ..] = &lacks[..]
                && rest.iter().all(|why| why.as_ref() == Some(first))
            {
                left_out.push(left(workload, "", &**subject, first.clone()));
                continue;
            }
            let some = sizes.iter().zip(lacks).filter_map(|(size, why)| Some((size, why?)));
            left_out.extend(some.map(|(size, why)| left(workload, &size.name, &**subject, why)));
        }
        let able = |size: &Size| {
            let able =
                self.subjects.iter().filter(|subject| Self::lacks(workload, size, &***subject).is_none());
            able.cloned().collect()
        };
        sizes.iter().map(|size| Cell::new(workload, size.clone(), &self.effort, able(size))).collect()
    }

    fn rounds_of(&self, workload: &Workload) -> u32 {
        if workload.once { 1 } else { self.rounds }
    }

    /// Runs it, in a task of its own on [`runtime`]. Rounds are interleaved: within a round each subject has its turn, and every other round goes backwards.
    ///
    /// What a subject fails at is left out for it, with the reason; the rounds that it did before count.
    ///
    /// # Errors
    /// When two subjects have one id, or there is nothing to run, or nothing to run it on; before anything runs.
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
            todo.extend(self.cells(workload, &mut run.left_out));
        }
        let samples = |cell: &Cell<'_>| cell.turnouts.len() * self.rounds_of(cell.workload) as usize;
        let (mut done, all) = (0, todo.iter().map(samples).sum());
        for mut cell in todo {
            for turn in 0..samples(&cell) {
                // Gives the signal time to arrive, and what the last sample left behind to end.
                tokio::time::sleep(Duration::from_millis(1)).await;
                run.interrupted |= *stop.borrow() > Stop::Never;
                let Some(place) = place(turn, cell.turnouts.len()).filter(|_| !run.interrupted) else {
                    break;
                };
                let Some(Turnout { subject, .. }) = cell.turnouts.get(place) else { break };
                let (workload, size) = (cell.workload.id, &*cell.size.name);
                progress(Step { done, all, workload, size, subject: &subject.info().id });
                done += 1;
                tokio::select! {
                    () = cell.take(place) => {}
                    () = told(&mut stop) => run.interrupted = true,
                }
            }
            cell.conclude(&mut run);
        }
        Ok(run)
    }
}

/// Whose turn it is: each in order, and backwards in every other round.
fn place(turn: usize, subjects: usize) -> Option<usize> {
    let (round, place) = (turn.checked_div(subjects)?, turn.checked_rem(subjects)?);
    Some(if round % 2 == 0 { place } else { subjects - 1 - place })
}

/// Waits until the run is to end at once.
async fn told(stop: &mut watch::Receiver<Stop>) {
    if stop.wait_for(|stop| *stop == Stop::Now).await.is_err() {
        // Whoever could say it has gone: then nobody will.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn subjects_take_turns() {
        let turns: Vec<_> = (0..7).filter_map(|turn| super::place(turn, 3)).collect();
        assert_eq!(turns, [0, 1, 2, 2, 1, 0, 0]);
        assert_eq!(super::place(0, 0), None);
    }
}
