//! The figures as plain tables, for a terminal.

use super::terms;
use crate::data::{Metric, Outcome, Run};

/// The figures of one workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The workload.
    pub title: String,
    /// What is above the columns.
    pub head: Vec<String>,
    /// A row for each size and subject, medians of the rounds.
    pub rows: Vec<Vec<String>>,
}

/// A table for each workload that has figures, with the columns that it has figures for.
pub(super) fn tables(run: &Run) -> Vec<Listed> {
    let workloads = run.workloads.iter();
    let tables = workloads.map(|workload| {
        let outcomes: Vec<&Outcome> = run.outcomes.iter().filter(|o| o.workload == workload.id).collect();
        table(run, &workload.id, &outcomes)
    });
    tables.filter(|table| !table.rows.is_empty()).collect()
}

fn table(run: &Run, workload: &str, outcomes: &[&Outcome]) -> Listed {
    let some = |metric: &Metric| outcomes.iter().any(|outcome| outcome.figures.contains_key(metric));
    let metrics: Vec<Metric> = Metric::ALL.into_iter().filter(some).collect();
    let sized = outcomes.iter().any(|outcome| !outcome.size.is_empty());
    let row = |outcome: &&Outcome| {
        let label = run.subjects.iter().find(|subject| subject.id == outcome.subject);
        let mut row = vec![label.map_or_else(|| outcome.subject.clone(), crate::data::SubjectInfo::label)];
        row.extend(sized.then(|| outcome.size.clone()));
        row.extend(metrics.iter().map(|metric| {
            let figure = outcome.figures.get(metric);
            figure.map_or_else(|| "–".into(), |figure| terms::value(*metric, figure.median))
        }));
        row
    };
    let mut head = vec!["subject".to_owned()];
    head.extend(sized.then(|| "size".into()));
    head.extend(metrics.iter().map(|metric| terms::metric(*metric).to_owned()));
    Listed { title: terms::title(workload).to_owned(), head, rows: outcomes.iter().map(row).collect() }
}
