//! The tables of a report.

mod rest;
mod standing;

use super::number;
use super::table::{Cell, Table};
use super::terms::{self, Point};
use super::view::{self, View};
use crate::data::{Metric, Run, SubjectInfo};

pub(super) use rest::{everything, left_out, subjects};
pub(super) use standing::{losses, peers, ratios, summary};

/// The table that says something even when it has no row.
pub(super) const LOSSES: &str = "losses";
/// The goal of the whole way over the driver alone: fifteen in a hundred.
pub(super) const OVER_BASELINE: f64 = 1.15;
/// The goal of many names at once against the driver alone.
pub(super) const NAMES_GOAL: f64 = 0.9;

/// What must be known of the run, a sentence each.
pub(super) fn facts(run: &Run) -> Vec<String> {
    let machine = &run.machine;
    let mut facts = Vec::new();
    if run.interrupted {
        facts.push("The run was ended before it was through: what is missing was not measured.".into());
    }
    facts.push(format!(
        "onelock {}, begun {}; {} {} of each workload, subjects taking turns; a figure is the median of its rounds.",
        run.version,
        run.began,
        run.rounds,
        if run.rounds == 1 { "round" } else { "rounds" }
    ));
    facts.push(format!(
        "{}, {} cores, {} of memory, {}; load average at the beginning {}.",
        machine.cpu,
        machine.cores,
        number::bytes(machine.memory as f64),
        machine.system,
        number::plain(machine.load)
    ));
    if run.is_of_a_busy_machine() {
        facts.push(
            "The machine was busy with other things: trust counts, and times only beside times of this run."
                .into(),
        );
    }
    if let Some((half, most)) = spread(run).filter(|_| run.rounds > 1) {
        facts.push(format!(
            "Between the rounds, the median latency of half of the measurements was apart by less than {}, of nine in ten by less than {}.",
            number::share(half),
            number::share(most)
        ));
    }
    facts
}

/// How far the rounds' p50 are apart, of its median, at most: in half of the outcomes, and in nine of ten. (The worst says
/// nothing: a hand-over that is mostly over when the release is answered takes no time in one round and some in another.)
fn spread(run: &Run) -> Option<(f64, f64)> {
    let figures = run.outcomes.iter().filter_map(|outcome| view::figure(outcome, Metric::P50));
    let mut apart: Vec<f64> =
        figures.filter_map(|figure| view::ratio(figure.most - figure.least, figure.median)).collect();
    apart.sort_by(f64::total_cmp);
    Some((*apart.get(apart.len() / 2)?, *apart.get(apart.len() * 9 / 10)?))
}

/// All tables, in the order of a text.
pub(super) fn all(run: &Run) -> Vec<Table> {
    let view = View::new(run);
    let mut tables = vec![summary(view)];
    tables.extend(losses(view));
    tables.extend([ratios(view), peers(view), left_out(view), subjects(view)]);
    tables.extend(view.workloads().into_iter().map(|workload| everything(view, workload, true)));
    tables.retain(|table| !table.rows.is_empty() || table.id == LOSSES);
    tables
}

/// The value of a figure.
fn of(view: View<'_>, subject: &SubjectInfo, point: Point, metric: Metric) -> Cell {
    Cell::maybe(view.figure(subject, point, metric).map(|figure| terms::value(metric, figure.median)))
}

/// A ratio, with enough digits to tell it from its goal.
pub(super) fn near(ratio: f64, goal: f64) -> String {
    let told = number::times(ratio);
    if ratio != goal && told == number::times(goal) { format!("{ratio:.3}×") } else { told }
}
