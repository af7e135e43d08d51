//! Which plots a report has: rows of all subjects, and for each store ours beside the driver alone and the best other library.

use super::number;
use super::plot::{Axis, Lines, Plot, Row, Rows, Scale, Series};
use super::tables::{self, NAMES_GOAL, OVER_BASELINE};
use super::terms::{self, Point};
use super::verdicts::{self, Verdict};
use super::view::{self, View};
use crate::data::{Kind, Metric, SubjectInfo};

/// A group of rows for each store.
fn groups(view: View<'_>, row: impl Fn(&SubjectInfo, String) -> Option<Row>) -> Vec<(String, Vec<Row>)> {
    let rows =
        |store: &str| view.parts(store).into_iter().filter_map(|part| row(part.subject, part.name)).collect();
    view.stores().into_iter().map(|store| (store.to_owned(), rows(store))).collect()
}

/// Latencies of all subjects at a point: median, and the tail behind it.
pub(super) fn latencies(view: View<'_>, title: &str, point: Point) -> Option<Plot> {
    let row = |subject: &SubjectInfo, name| {
        let value = |metric| view.figure(subject, point, metric).map(|figure| figure.median);
        let (p50, p99, max) = (value(Metric::P50)?, value(Metric::P99), value(Metric::Max));
        let mut told = number::time(p50);
        told.extend(p99.map(|p99| format!(" · p99 {}", number::time(p99))));
        let range = max.or(p99).map(|end| (p50, end));
        let ticks = [value(Metric::P90), p99].into_iter().flatten().collect();
        Some(Row { name, kind: subject.kind, value: p50, range, ticks, told, bad: false })
    };
    Rows {
        title: title.into(),
        note: "The marker is the median, the ticks are p90 and p99, the line ends at the longest.".into(),
        x: Axis { title: "latency (log)".into(), scale: Scale::Log, written: number::time },
        groups: groups(view, row),
        line: None,
        bars: false,
    }
    .draw()
}

/// One figure of all subjects, as bars from zero.
pub(super) fn bars(view: View<'_>, title: &str, note: &str, point: Point, metric: Metric) -> Option<Plot> {
    let row = |subject: &SubjectInfo, name| {
        let figure = view.figure(subject, point, metric)?;
        let (value, told) = (figure.median, terms::value(metric, figure.median));
        let range = Some((figure.least, figure.most));
        Some(Row { name, kind: subject.kind, value, range, ticks: Vec::new(), told, bad: false })
    };
    let written: fn(f64) -> String = match metric {
        Metric::InUse | Metric::ClientCpu => number::share,
        Metric::Memory => number::bytes,
        _ => number::short,
    };
    Rows {
        title: title.into(),
        note: note.into(),
        x: Axis { title: terms::metric(metric).into(), scale: Scale::Linear, written },
        groups: groups(view, row),
        line: None,
        bars: true,
    }
    .draw()
}

/// A figure against the number of tasks, a plot for each store.
pub(super) fn against_tasks(view: View<'_>, workload: &str, metric: Metric, x: &str) -> Vec<Plot> {
    let series = |subject: &SubjectInfo, name: String| {
        let outcomes = view.outcomes(&subject.id, workload).filter(|outcome| terms::in_order(&outcome.size));
        let mut points: Vec<_> = outcomes
            .filter_map(|outcome| {
                let figure = view::figure(outcome, metric)?;
                Some((f64::from(outcome.tasks), figure.median, (figure.least, figure.most)))
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (!points.is_empty()).then_some(Series { name, kind: subject.kind, points })
    };
    let plot = |store: &str| {
        let all = view.parts(store).into_iter().filter_map(|part| series(part.subject, part.name));
        let (mut lines, mut peers): (Vec<_>, Vec<_>) = all.partition(|line| line.kind != Kind::Peer);
        let last = |line: &Series| line.points.last().map_or(0.0, |point| point.1);
        peers.sort_by(|a, b| last(b).total_cmp(&last(a)));
        lines.extend(peers.into_iter().next());
        let title = format!("{} (log)", terms::metric(metric));
        Lines {
            title: store.into(),
            x: Axis { title: x.into(), scale: Scale::Doubling, written: number::plain },
            y: Axis { title, scale: Scale::Log, written: number::short },
            series: lines,
        }
        .draw()
    };
    view.stores().into_iter().filter_map(plot).collect()
}

/// Ours over the driver alone, a row a store, with the goal as a line.
pub(super) fn over_baseline(view: View<'_>) -> Vec<Plot> {
    let plot = |title: &str, point, metric, goal: f64| {
        let rows = view.stores().into_iter().filter_map(|store| {
            let value = view.over_baseline(view.ours(store)?, point, metric)?;
            let bad = if terms::more_is_better(metric) { value < goal } else { value > goal };
            let told = format!("{}{}", tables::near(value, goal), if bad { " misses the goal" } else { "" });
            let name = store.to_owned();
            Some(Row { name, kind: Kind::Ours, value, range: None, ticks: Vec::new(), told, bad })
        });
        Rows {
            title: title.into(),
            note: format!("{} is better.", if terms::more_is_better(metric) { "Longer" } else { "Shorter" }),
            x: Axis {
                title: "ours over the driver alone".into(),
                scale: Scale::Linear,
                written: number::times,
            },
            groups: vec![(String::new(), rows.collect())],
            line: Some((goal, format!("goal {goal}×"))),
            bars: true,
        }
        .draw()
    };
    let time = plot("Uncontended p50 over the driver alone", terms::CYCLE, Metric::P50, OVER_BASELINE);
    let rate = plot("64 names at once: rate over the driver alone", terms::NAMES, Metric::Rate, NAMES_GOAL);
    time.into_iter().chain(rate).collect()
}

/// Ours beside the other libraries, a plot a store: how many times better.
pub(super) fn leads(view: View<'_>) -> Vec<Plot> {
    let plot = |store| {
        let matches = verdicts::matches(view, store);
        let groups = view.peers(store).into_iter().map(|peer| {
            let rows = matches.iter().filter(|each| each.peer.id == peer.id).filter_map(|each| {
                let lead = each.lead()?;
                let value = |value| terms::value(each.metric, value);
                let how = match each.verdict {
                    Verdict::Better => "",
                    Verdict::Same => " level",
                    Verdict::Worse => " we lose",
                };
                Some(Row {
                    name: each.what.into(),
                    kind: Kind::Peer,
                    value: lead,
                    range: Some((lead.min(1.0), lead.max(1.0))),
                    ticks: Vec::new(),
                    told: format!("{} : {}{how}", value(each.ours.median), value(each.theirs.median)),
                    bad: each.verdict == Verdict::Worse,
                })
            });
            (peer.library.clone(), rows.collect())
        });
        Rows {
            title: format!("{store} beside other libraries"),
            note: "Left of the line the other is better. Beside each: ours : the other's.".into(),
            x: Axis {
                title: "how many times better ours is (log)".into(),
                scale: Scale::Log,
                written: |value| format!("{}×", number::short(value)),
            },
            groups: groups.collect(),
            line: Some((1.0, "level".into())),
            bars: false,
        }
        .draw()
    };
    view.stores().into_iter().filter_map(plot).collect()
}
