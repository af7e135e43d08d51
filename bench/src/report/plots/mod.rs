//! Which plots a report has.

mod standing;

use super::curves::{Curves, Series, Spot};
use super::dots::{Dots, Group, Row};
use super::number;
use super::plot::{Axis, Scale};
use super::style::Style;
use super::terms::{self, Point};
use super::view::{self, Part, View};
use crate::data::{Distribution, Kind, Metric, SubjectInfo};

pub(super) use standing::{leads, over_floor};

fn latency_axis(title: &str) -> Axis {
    Axis { title: format!("{title} (log)"), scale: Scale::Log, written: number::time }
}

/// The parts of a store with their looks: the others are told apart by their place.
fn styled<'a>(view: View<'a>, store: &str) -> Vec<(Part<'a>, Style)> {
    let mut peers = 0;
    let parts = view.parts(store).into_iter();
    parts
        .map(|part| {
            let style = Style::part(part.subject.kind, peers);
            peers += usize::from(part.subject.kind == Kind::Peer);
            (part, style)
        })
        .collect()
}

/// Ours, a series a store.
fn stores<'a>(view: View<'a>) -> Vec<(&'a SubjectInfo, Style)> {
    let stores = view.stores().into_iter().enumerate();
    stores.filter_map(|(n, store)| Some((view.ours(store)?, Style::store(n)))).collect()
}

fn legend(view: View<'_>) -> Vec<(Style, String)> {
    let has = |kind| view.run().subjects.iter().any(|subject| subject.kind == kind);
    [(Kind::Ours, "onelock"), (Kind::Floor, "driver alone"), (Kind::Peer, "another library")]
        .into_iter()
        .filter(|(kind, _)| has(*kind))
        .map(|(kind, name)| (Style::part(kind, 0), name.into()))
        .collect()
}

/// A row for each subject of each store.
fn groups(view: View<'_>, row: impl Fn(&SubjectInfo) -> Option<Row>) -> Vec<Group> {
    let mut groups = Vec::new();
    for store in view.stores() {
        let mut rows = Vec::new();
        for part in view.home(store) {
            let style = Style::part(part.subject.kind, 0);
            rows.extend(row(part.subject).map(|row| Row { name: part.name, style, ..row }));
        }
        groups.push(Group { name: store.into(), rows });
    }
    groups
}

/// Latencies of all subjects at a point: median, and the tail behind it.
pub(super) fn latencies(view: View<'_>, title: &str, point: Point) -> Option<String> {
    let row = |subject: &SubjectInfo| {
        let value = |metric| view.figure(subject, point, metric).map(|figure| figure.median);
        let (p50, p99, max) = (value(Metric::P50)?, value(Metric::P99), value(Metric::Max));
        let mut told = number::time(p50);
        told.extend(p99.map(|p99| format!(" · p99 {}", number::time(p99))));
        Some(Row {
            name: String::new(),
            style: Style::part(Kind::Ours, 0),
            value: p50,
            range: max.or(p99).map(|end| (p50, end)),
            ticks: [value(Metric::P90), p99].into_iter().flatten().collect(),
            told,
            bad: false,
        })
    };
    Dots {
        title: title.into(),
        note: "The marker is the median, the ticks are p90 and p99, the line ends at the longest.".into(),
        x: latency_axis("latency"),
        groups: groups(view, row),
        lines: Vec::new(),
        bars: false,
        legend: legend(view),
    }
    .draw()
}

/// A plot of all stores, and one for each store with all that is on it.
#[derive(Default)]
pub(super) struct Curved {
    pub(super) all: Option<String>,
    pub(super) stores: Vec<String>,
}

/// Percentile curves: one of all stores, and one for each store with all that is on it.
pub(super) fn distributions(view: View<'_>, title: &str, point: Point) -> Curved {
    let curve = |title: String, note: &str, least: usize, parts: Vec<(&SubjectInfo, String, Style)>| {
        let series = parts.into_iter().map(|(subject, name, style)| {
            let points =
                view.latency(subject, point).map_or_else(|| from_figures(view, subject, point), within);
            let points = points.into_iter().map(|(x, y)| Spot { x, y, range: None }).collect();
            Series { name, style, points, marked: false }
        });
        let series: Vec<_> = series.filter(|series| !series.points.is_empty()).collect();
        // One line alone is in the plot of all stores.
        if series.len() < least {
            return None;
        }
        Curves {
            title,
            note: note.into(),
            x: Axis {
                title: "percentile of operations".into(),
                scale: Scale::Nines,
                written: |value| format!("{}", (value * 1e4).round() / 1e4),
            },
            y: latency_axis("latency"),
            series,
        }
        .draw()
    };
    let all =
        stores(view).into_iter().map(|(subject, style)| (subject, subject.store.clone(), style)).collect();
    let all = curve(
        format!("{title}: all stores"),
        "A point tells that so many in a hundred operations took at most so long.",
        1,
        all,
    );
    let mut stores = Vec::new();
    for store in view.stores() {
        let parts = styled(view, store).into_iter();
        let parts = parts.map(|(part, style)| (part.subject, part.name, style)).collect();
        stores.extend(curve(format!("{title}: {store}"), "", 2, parts));
    }
    Curved { all, stores }
}

/// The points as far as there were operations: of a hundred, the slowest tells nothing about one in a thousand.
fn within(latency: &Distribution) -> Vec<(f64, f64)> {
    let most = 100.0 * (1.0 - 1.0 / latency.count.max(2) as f64);
    latency.points.iter().map(|&(at, us)| (if at > most { most } else { at }, us)).collect()
}

fn from_figures(view: View<'_>, subject: &SubjectInfo, point: Point) -> Vec<(f64, f64)> {
    let known = [(50.0, Metric::P50), (90.0, Metric::P90), (99.0, Metric::P99)];
    let figure = |(at, metric)| view.figure(subject, point, metric).map(|figure| (at, figure.median));
    known.into_iter().filter_map(figure).collect()
}

/// A figure against the number of tasks: one of all stores, and one for each store with all that is on it.
pub(super) fn against_tasks(view: View<'_>, title: &str, workload: &str, metric: Metric, x: &str) -> Curved {
    let series = |subject: &SubjectInfo, name: &str, style: Style, variant: &str| {
        let mut points: Vec<Spot> = view
            .outcomes(&subject.id, workload)
            .filter(|outcome| terms::variant(&outcome.size) == variant)
            .filter_map(|outcome| {
                let figure = view::figure(outcome, metric)?;
                let range = Some((figure.least, figure.most));
                Some(Spot { x: f64::from(outcome.tasks), y: figure.median, range })
            })
            .collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        let (name, style) = match variant {
            "" => (name.to_owned(), style),
            _ => (format!("{name}, {variant}"), style.broken()),
        };
        (!points.is_empty()).then_some(Series { name, style, points, marked: true })
    };
    let curves = |title: String, note: &str, series: Vec<Series>| {
        Curves {
            title,
            note: note.into(),
            x: Axis { title: x.into(), scale: Scale::Doubling, written: number::plain },
            y: Axis {
                title: format!("{} (log)", terms::metric(metric)),
                scale: Scale::Log,
                written: number::short,
            },
            series,
        }
        .draw()
    };
    let all: Vec<_> = stores(view)
        .into_iter()
        .filter_map(|(subject, style)| series(subject, &subject.store, style, ""))
        .collect();
    let all = curves(format!("{title}: all stores"), "Upright lines are the range of the rounds.", all);
    let mut stores = Vec::new();
    for store in view.stores() {
        let mut lines = Vec::new();
        for (part, style) in styled(view, store) {
            let mut variants: Vec<String> =
                view.outcomes(&part.subject.id, workload).map(|o| terms::variant(&o.size)).collect();
            variants.sort();
            variants.dedup();
            lines.extend(
                variants.iter().filter_map(|variant| series(part.subject, &part.name, style, variant)),
            );
        }
        if lines.len() > 1 {
            stores.extend(curves(format!("{title}: {store}"), "", lines));
        }
    }
    Curved { all, stores }
}

/// One figure of all subjects, as bars from zero.
pub(super) fn bars(
    view: View<'_>,
    (title, note): (&str, &str),
    x: &str,
    point: Point,
    metric: Metric,
) -> Option<String> {
    let row = |subject: &SubjectInfo| {
        let figure = view.figure(subject, point, metric)?;
        Some(Row {
            name: String::new(),
            style: Style::part(Kind::Ours, 0),
            value: figure.median,
            range: Some((figure.least, figure.most)),
            ticks: Vec::new(),
            told: terms::value(metric, figure.median),
            bad: false,
        })
    };
    let written: fn(f64) -> String = match metric {
        Metric::InUse | Metric::ClientCpu => number::share,
        Metric::Memory => number::bytes,
        _ => number::short,
    };
    Dots {
        title: title.into(),
        note: note.into(),
        x: Axis { title: x.into(), scale: Scale::Linear, written },
        groups: groups(view, row),
        lines: Vec::new(),
        bars: true,
        legend: legend(view),
    }
    .draw()
}
