//! Which plots a report has: rows of all subjects, and for each store ours beside the driver alone and the best other library.

use serde::Serialize;

use super::number;
use super::plot::{Lines, Plot, Row, Rows, Series};
use super::terms::{self, Point};
use super::view::{self, View};
use crate::data::{Kind, Metric, SubjectInfo};

/// Plots with a heading.
#[derive(Serialize)]
pub(super) struct Panel<'a> {
    id: &'a str,
    title: &'a str,
    note: &'a str,
    plots: Vec<Plot>,
}

/// All panels with something in them, in the order in which someone who chooses a store asks.
pub(super) fn panels(view: View<'_>) -> Vec<Panel<'_>> {
    const LONGER: &str = "Longer is better.";
    const SHORTER: &str = "Shorter is better.";
    let bars = |title, note, point, metric| bars(view, title, note, point, metric);
    let latencies = |title, point| latencies(view, title, point);
    let drawn = |plots: Vec<Option<Plot>>| plots.into_iter().flatten().collect::<Vec<_>>();
    let panels = [
        ("cycle", drawn(vec![latencies("Uncontended cycle: latency", terms::CYCLE)])),
        ("hand-over", drawn(vec![latencies("Hand-over: latency", terms::HAND_OVER)])),
        ("names", against_tasks(view, "names", Metric::Rate, "tasks of one client (log)")),
        ("contended", against_tasks(view, "contended", Metric::OwnerChanges, "contenders (log)")),
        (
            "duty",
            drawn(vec![
                bars(
                    "Shares of 8 contenders in order",
                    "1: all got the same.",
                    terms::CONTENDED,
                    Metric::Jain,
                ),
                bars("Time in use", LONGER, terms::DUTY, Metric::InUse),
            ]),
        ),
        (
            "held",
            drawn(vec![
                bars("64 idle waiters: requests", SHORTER, terms::IDLE, Metric::ServerRate),
                bars("Held locks: processor time", SHORTER, terms::HELD, Metric::ClientCpu),
                bars("Memory of a held lock", SHORTER, terms::HELD, Metric::Memory),
                latencies("Connection to first lock", terms::CONNECT),
                latencies("Takeover after a crash", terms::TAKEOVER),
            ]),
        ),
    ];
    let panel = |(id, plots): (&'static str, Vec<Plot>)| {
        let note = view.about(id).map_or("", |info| &*info.about);
        (!plots.is_empty()).then(|| Panel { id, title: terms::title(id), note, plots })
    };
    panels.into_iter().filter_map(panel).collect()
}

/// A group of rows for each store.
fn groups(view: View<'_>, row: impl Fn(&SubjectInfo, String) -> Option<Row>) -> Vec<(String, Vec<Row>)> {
    let rows = |store: &str| view.parts(store).into_iter().filter_map(|(subject, name)| row(subject, name));
    view.stores().into_iter().map(|store| (store.to_owned(), rows(store).collect())).collect()
}

/// Latencies of all subjects at a point: median, and the tail behind it.
fn latencies(view: View<'_>, title: &str, point: Point) -> Option<Plot> {
    let row = |subject: &SubjectInfo, name| {
        let value = |metric| view.figure(subject, point, metric).map(|figure| figure.median);
        let (p50, p99, max) = (value(Metric::P50)?, value(Metric::P99), value(Metric::Max));
        let mut told = number::time(p50);
        told.extend(p99.map(|p99| format!(" · p99 {}", number::time(p99))));
        let ticks = [value(Metric::P90), p99].into_iter().flatten().collect();
        let range = (p50, max.or(p99).unwrap_or(p50));
        Some(Row { name, kind: subject.kind, value: p50, range, ticks, told })
    };
    Rows {
        title: title.into(),
        note: "The marker is the median, the ticks are p90 and p99, the line ends at the longest.".into(),
        x: "latency (log)".into(),
        written: number::time,
        groups: groups(view, row),
        bars: false,
    }
    .draw()
}

/// One figure of all subjects, as bars from zero.
fn bars(view: View<'_>, title: &str, note: &str, point: Point, metric: Metric) -> Option<Plot> {
    let row = |subject: &SubjectInfo, name| {
        let figure = view.figure(subject, point, metric)?;
        let (value, told) = (figure.median, terms::value(metric, figure.median));
        let range = (figure.least, figure.most);
        Some(Row { name, kind: subject.kind, value, range, ticks: Vec::new(), told })
    };
    Rows {
        title: title.into(),
        note: note.into(),
        x: terms::metric(metric).into(),
        written: number::plain,
        groups: groups(view, row),
        bars: true,
    }
    .draw()
}

/// A figure against the number of tasks, a plot for each store: ours, the driver alone, and the best other library.
fn against_tasks(view: View<'_>, workload: &str, metric: Metric, x: &str) -> Vec<Plot> {
    let series = |(subject, name): (&SubjectInfo, String)| {
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
        let all = view.parts(store).into_iter().filter_map(series);
        let (mut lines, peers): (Vec<_>, Vec<_>) = all.partition(|line| line.kind != Kind::Peer);
        let last = |line: &Series| line.points.last().map_or(0.0, |point| point.1);
        lines.extend(peers.into_iter().max_by(|a, b| last(a).total_cmp(&last(b))));
        let y = format!("{} (log)", terms::metric(metric));
        Lines { title: store.into(), x: x.into(), y, series: lines }.draw()
    };
    view.stores().into_iter().filter_map(plot).collect()
}
