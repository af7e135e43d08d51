//! The tables of a report.

mod standing;

use super::number;
use super::table::{Cell, Table};
use super::terms;
use super::view::{self, View};
use crate::data::{Kind, Metric, Outcome, Run};

pub(super) use standing::{peers, ratios, summary};

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

/// Where we stand, what was measured and what was not, and all figures: those that have rows.
pub(super) fn all(view: View<'_>) -> [Vec<Table>; 3] {
    let figures = view.workloads().into_iter().map(|workload| everything(view, workload, true));
    let all = [
        vec![summary(view), ratios(view), peers(view)],
        vec![left_out(view), subjects(view)],
        figures.collect(),
    ];
    all.map(|tables| tables.into_iter().filter(|table| !table.rows.is_empty()).collect())
}

/// What was left out, and why.
pub(super) fn left_out(view: View<'_>) -> Table {
    let mut table = Table::new("left-out", "Left out", &["what", "workload", "why"], &[]);
    for left in &view.run.left_out {
        let (what, mut workload) = (view.label(&left.subject), terms::title(&left.workload).to_owned());
        if !left.size.is_empty() {
            workload = format!("{workload} ({})", left.size);
        }
        // One reason often holds for many workloads.
        let same = table.rows.iter_mut().map(Vec::as_mut_slice).find_map(|row| match row {
            [of, workloads, why] if of.text == what && why.text == left.why => Some(workloads),
            _ => None,
        });
        match same {
            Some(workloads) => workloads.text.extend(["; ", &workload]),
            None => table.rows.push([what, workload, left.why.clone()].map(Cell::plain).into()),
        }
    }
    table
}

/// What was measured.
fn subjects(view: View<'_>) -> Table {
    let mut table = Table::new("subjects", "What was measured", &["store", "what", "library", "server"], &[]);
    table.rows.extend(view.run.subjects.iter().map(|subject| {
        let kind = match subject.kind {
            Kind::Ours => "onelock",
            Kind::Baseline => "driver alone",
            Kind::Peer => "another library",
        };
        let known = [subject.store.as_str(), kind, &subject.library].map(Cell::plain);
        known.into_iter().chain([Cell::maybe(subject.server.clone())]).collect()
    }));
    table
}

/// All figures of a workload: medians, and with `ranges` the least and the most of the rounds.
pub(super) fn everything(view: View<'_>, workload: &str, ranges: bool) -> Table {
    let outcomes: Vec<&Outcome> =
        view.run.outcomes.iter().filter(|outcome| outcome.workload == workload).collect();
    let has = |metric: &Metric| outcomes.iter().any(|outcome| view::figure(outcome, *metric).is_some());
    let metrics: Vec<Metric> = Metric::ALL.into_iter().filter(has).collect();
    let names: Vec<_> = metrics.iter().map(|metric| terms::metric(*metric)).collect();
    let sized = outcomes.iter().any(|outcome| !outcome.size.is_empty());
    let remarks = outcomes.iter().any(|outcome| outcome.remark.is_some());
    let words: &[&str] = if sized { &["what", "size"] } else { &["what"] };
    let mut table = Table::new(&format!("all-{workload}"), terms::title(workload), words, &names);
    table.head.extend(remarks.then(|| ("remark".to_owned(), false)));
    table.note = view.about(workload).map_or_else(String::new, |info| {
        let latency = info.latency.as_ref().map(|from| format!(" Latency: {from}.")).unwrap_or_default();
        format!("{} Operation: {}.{latency}", info.about, info.operation)
    });
    for outcome in outcomes {
        let mut row = vec![Cell::plain(view.label(&outcome.subject))];
        row.extend(sized.then(|| Cell::plain(&outcome.size)));
        row.extend(metrics.iter().map(|&metric| {
            Cell::maybe(view::figure(outcome, metric).map(|figure| {
                if ranges { terms::spread(metric, &figure) } else { terms::value(metric, figure.median) }
            }))
        }));
        row.extend(remarks.then(|| Cell::plain(outcome.remark.clone().unwrap_or_default())));
        table.rows.push(row);
    }
    table
}
