//! A run against an older one.

use std::fmt::Write as _;

use super::number;
use super::table::{Cell, Look, Table, numbers, words};
use super::terms;
use super::verdicts::{self, Verdict};
use super::view::{self, View};
use crate::data::{FORMAT, Metric, Outcome, Run};

pub(super) fn compare(old: &Run, new: &Run) -> String {
    for (which, run) in [("older", old), ("newer", new)] {
        if run.format != FORMAT {
            return format!(
                "These runs cannot be compared: the {which} one is of format {}, this program reads format {FORMAT}.\n",
                run.format
            );
        }
    }
    let rows = rows(old, new);
    let of = |verdict| rows.iter().filter(move |(row, _)| *row == verdict);
    let [version, began, before, at] =
        [&new.version, &new.began, &old.version, &old.began].map(|s| number::cell(s));
    let mut out = format!(
        "# {version} {began} against {before} {at}\n\n{} better, {} worse, {} the same within the spread.\n",
        of(Verdict::Better).count(),
        of(Verdict::Worse).count(),
        of(Verdict::Same).count(),
    );
    // Writing to a string does not fail.
    for caution in cautions(old, new) {
        let _ = write!(out, "\n**{}**\n", number::cell(&caution));
    }
    for (title, verdict) in
        [("Worse", Verdict::Worse), ("Better", Verdict::Better), ("Same within the spread", Verdict::Same)]
    {
        let rows: Vec<_> = of(verdict).map(|(_, cells)| cells.clone()).collect();
        if rows.is_empty() {
            continue;
        }
        let head = [words("workload"), words("size"), words("what"), words("figure")];
        let figures = [numbers("old"), numbers("new"), numbers("ratio")];
        let table = Table {
            id: String::new(),
            title: title.into(),
            note: String::new(),
            head: head.into_iter().chain(figures).collect(),
            rows,
        };
        let _ = write!(out, "\n{}\n", table.markdown());
    }
    for (title, run, other) in [("New", new, old), ("Gone", old, new)] {
        let mut missing = run.outcomes.iter().filter(|outcome| same(other, outcome).is_none()).peekable();
        if missing.peek().is_some() {
            let _ = write!(out, "\n## {title}\n\n");
        }
        for outcome in missing {
            let what = format!("{} {}", terms::title(&outcome.workload), outcome.size);
            let subject = View::new(run).label(&outcome.subject);
            let _ = writeln!(out, "- {}", number::cell(&format!("{}, {subject}", what.trim_end())));
        }
    }
    out
}

/// What must be known before the figures are believed.
fn cautions(old: &Run, new: &Run) -> Vec<String> {
    let mut cautions = Vec::new();
    let machine = |run: &Run| {
        let machine = &run.machine;
        let memory = number::bytes(machine.memory as f64);
        format!("{}, {} cores, {memory}, {}", machine.cpu, machine.cores, machine.system)
    };
    let (was, is) = (machine(old), machine(new));
    if was != is {
        cautions.push(format!("The machines differ: {was}; now {is}. Only counts can be compared."));
    }
    for (which, run) in [("older", old), ("newer", new)] {
        if run.rounds < 2 {
            cautions.push(format!(
                "The {which} run has one round: its spread is not known, and any difference counts."
            ));
        }
        if run.interrupted {
            cautions.push(format!("The {which} run was ended before it was through."));
        }
        if run.is_of_a_busy_machine() {
            cautions.push(format!("The machine was busy when the {which} run began."));
        }
    }
    for subject in &new.subjects {
        let before = old.subjects.iter().find(|before| before.id == subject.id);
        if let Some(before) =
            before.filter(|before| (&before.library, &before.server) != (&subject.library, &subject.server))
        {
            let told = |info: &crate::data::SubjectInfo| match &info.server {
                Some(server) => format!("{} on {server}", info.library),
                None => info.library.clone(),
            };
            cautions.push(format!("{} was {}; now {}.", subject.label(), told(before), told(subject)));
        }
    }
    cautions
}

/// The outcome of the same workload, size and subject.
fn same<'a>(run: &'a Run, outcome: &Outcome) -> Option<&'a Outcome> {
    run.outcomes.iter().find(|other| {
        other.workload == outcome.workload && other.size == outcome.size && other.subject == outcome.subject
    })
}

/// A row for each figure that both runs have.
fn rows(old: &Run, new: &Run) -> Vec<(Verdict, Vec<Cell>)> {
    let view = View::new(new);
    let mut rows = Vec::new();
    for outcome in &new.outcomes {
        let Some(before) = same(old, outcome) else { continue };
        for metric in Metric::ALL {
            let (Some(old), Some(new)) = (view::figure(before, metric), view::figure(outcome, metric)) else {
                continue;
            };
            let verdict = verdicts::judge(metric, &new, &old);
            let look = match verdict {
                Verdict::Better => Look::Good,
                Verdict::Worse => Look::Bad,
                Verdict::Same => Look::Quiet,
            };
            let cells = vec![
                Cell::plain(terms::title(&outcome.workload)),
                Cell::plain(&outcome.size),
                Cell::plain(view.label(&outcome.subject)),
                Cell::plain(terms::metric(metric)),
                Cell::plain(terms::spread(metric, &old)),
                Cell::plain(terms::spread(metric, &new)),
                Cell::maybe(view::ratio(new.median, old.median).map(number::times)).look(look),
            ];
            rows.push((verdict, cells));
        }
    }
    rows
}
