//! What was measured and what was not, and all figures.

use crate::data::{Kind, Metric, Outcome};
use crate::report::table::{Cell, Table, numbers, words};
use crate::report::terms;
use crate::report::view::{self, View};

/// What was left out, and why.
pub(in crate::report) fn left_out(view: View<'_>) -> Table {
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for left in &view.run().left_out {
        let (what, mut workload) = (view.label(&left.subject), terms::title(&left.workload).to_owned());
        if !left.size.is_empty() {
            workload = format!("{workload} ({})", left.size);
        }
        // One reason often holds for many workloads.
        let same = rows.iter_mut().map(Vec::as_mut_slice).find_map(|row| match row {
            [of, workloads, why] if of.text == what && why.text == left.why => Some(workloads),
            _ => None,
        });
        match same {
            Some(workloads) => {
                workloads.text.push_str("; ");
                workloads.text.push_str(&workload);
            }
            None => rows.push(vec![Cell::plain(what), Cell::plain(workload), Cell::plain(&left.why)]),
        }
    }
    Table {
        id: "left-out".into(),
        title: "Left out".into(),
        note: String::new(),
        head: vec![words("what"), words("workload"), words("why")],
        rows,
    }
}

/// What was measured.
pub(in crate::report) fn subjects(view: View<'_>) -> Table {
    let rows = view.run().subjects.iter().map(|subject| {
        let kind = match subject.kind {
            Kind::Ours => "onelock",
            Kind::Baseline => "driver alone",
            Kind::Peer => "another library",
        };
        vec![
            Cell::plain(&subject.store),
            Cell::plain(kind),
            Cell::plain(&subject.library),
            Cell::maybe(subject.server.clone()),
        ]
    });
    Table {
        id: "subjects".into(),
        title: "What was measured".into(),
        note: String::new(),
        head: vec![words("store"), words("what"), words("library"), words("server")],
        rows: rows.collect(),
    }
}

/// All figures of a workload: medians, and with `ranges` the least and the most of the rounds.
pub(in crate::report) fn everything(view: View<'_>, workload: &str, ranges: bool) -> Table {
    let outcomes: Vec<_> =
        view.run().outcomes.iter().filter(|outcome| outcome.workload == workload).collect();
    let has = |metric: &Metric| outcomes.iter().any(|outcome| view::figure(outcome, *metric).is_some());
    let metrics: Vec<Metric> = Metric::ALL.into_iter().filter(has).collect();
    let sized = outcomes.iter().any(|outcome| !outcome.size.is_empty());
    let remarks = outcomes.iter().any(|outcome| outcome.remark.is_some());
    let row = |outcome: &&&Outcome| {
        let mut row = vec![Cell::plain(view.label(&outcome.subject))];
        row.extend(sized.then(|| Cell::plain(&outcome.size)));
        row.extend(metrics.iter().map(|&metric| {
            Cell::maybe(view::figure(outcome, metric).map(|figure| {
                if ranges { terms::spread(metric, &figure) } else { terms::value(metric, figure.median) }
            }))
        }));
        row.extend(remarks.then(|| Cell::plain(outcome.remark.clone().unwrap_or_default())));
        row
    };
    let mut head = vec![words("what")];
    head.extend(sized.then(|| words("size")));
    head.extend(metrics.iter().map(|&metric| numbers(terms::metric(metric))));
    head.extend(remarks.then(|| words("remark")));
    let note = view.about(workload).map(|info| {
        let latency = info.latency.as_ref().map(|from| format!(" Latency: {from}.")).unwrap_or_default();
        format!("{} Operation: {}.{latency}", info.about, info.operation)
    });
    Table {
        id: format!("all-{workload}"),
        title: terms::title(workload).to_owned(),
        note: note.unwrap_or_default(),
        head,
        rows: outcomes.iter().map(|outcome| row(&outcome)).collect(),
    }
}
