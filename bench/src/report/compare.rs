//! A run against an older one.

use std::fmt::Write as _;

use super::number;
use super::table::{Cell, Emphasis, Table};
use super::terms;
use super::verdicts::{self, Verdict};
use super::view::{self, View};
use crate::data::{FORMAT, Metric, Outcome, Run, SubjectInfo};

pub(super) fn compare(old: &Run, new: &Run) -> String {
    for (which, run) in [("older", old), ("newer", new)] {
        if run.format != FORMAT {
            return format!(
                "These runs cannot be compared: the {which} one is of format {}, this program reads format {FORMAT}.\n",
                run.format
            );
        }
    }
    let tables = tables(old, new);
    let [worse, better, level] = tables.each_ref().map(|table| table.rows.len());
    let [version, began, before, at] =
        [&new.version, &new.began, &old.version, &old.began].map(|s| number::cell(s));
    let mut out = format!(
        "# {version} {began} against {before} {at}\n\n{better} better, {worse} worse, {level} the same within the spread.\n"
    );
    // Writing to a string does not fail.
    for caution in cautions(old, new) {
        let _ = write!(out, "\n**{}**\n", number::cell(&caution));
    }
    for table in tables.iter().filter(|table| !table.rows.is_empty()) {
        let _ = write!(out, "\n{}\n", table.markdown());
    }
    for (title, run, other) in [("New", new, old), ("Gone", old, new)] {
        let missing: Vec<_> = run.outcomes.iter().filter(|outcome| same(other, outcome).is_none()).collect();
        if !missing.is_empty() {
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
    let versions = |info: &SubjectInfo| match &info.server {
        Some(server) => format!("{} on {server}", info.library),
        None => info.library.clone(),
    };
    for subject in &new.subjects {
        let Some(before) = old.subjects.iter().find(|before| before.id == subject.id) else { continue };
        let (was, is) = (versions(before), versions(subject));
        if was != is {
            cautions.push(format!("{} was {was}; now {is}.", subject.label()));
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

/// What is worse, better and the same: a row for each figure that both runs have.
fn tables(old: &Run, new: &Run) -> [Table; 3] {
    let table =
        |title| Table::new("", title, &["workload", "size", "what", "figure"], &["old", "new", "ratio"]);
    let [mut worse, mut better, mut level] = ["Worse", "Better", "Same within the spread"].map(table);
    for outcome in &new.outcomes {
        let Some(before) = same(old, outcome) else { continue };
        for metric in Metric::ALL {
            let (Some(old), Some(figure)) = (view::figure(before, metric), view::figure(outcome, metric))
            else {
                continue;
            };
            let (table, look) = match verdicts::judge(metric, &figure, &old) {
                Verdict::Better => (&mut better, Emphasis::Good),
                Verdict::Worse => (&mut worse, Emphasis::Bad),
                Verdict::Same => (&mut level, Emphasis::Quiet),
            };
            let ratio = Cell::maybe(view::ratio(figure.median, old.median).map(number::times)).look(look);
            let row = [
                terms::title(&outcome.workload).to_owned(),
                outcome.size.clone(),
                View::new(new).label(&outcome.subject),
                terms::metric(metric).to_owned(),
                terms::spread(metric, &old),
                terms::spread(metric, &figure),
            ];
            table.rows.push(row.map(Cell::plain).into_iter().chain([ratio]).collect());
        }
    }
    [worse, better, level]
}
