//! Where we stand: against the driver alone, and against other libraries.

use super::stores;
use crate::data::{Kind, Metric};
use crate::report::dots::{Dots, Group, Row};
use crate::report::number;
use crate::report::plot::{Axis, Scale};
use crate::report::style::Style;
use crate::report::tables::{self, NAMES_FLOOR, OVER_FLOOR};
use crate::report::terms::{self, Point};
use crate::report::verdicts::{self, Verdict};
use crate::report::view::View;

/// Ours over the driver alone, a row a store, with the goal as a line.
pub(in crate::report) fn over_floor(view: View<'_>) -> Vec<String> {
    let figure = |title: &str, note: &str, point: Point, metric: Metric, goal: f64| {
        let missed = |ratio: f64| if terms::more_is_better(metric) { ratio < goal } else { ratio > goal };
        let rows = stores(view).into_iter().filter_map(|(ours, _)| {
            let ratio = view.over_floor(ours, point, metric)?;
            let bad = missed(ratio);
            let mut told = tables::near(ratio, goal);
            if bad {
                told.push_str(" misses the goal");
            }
            Some(Row {
                name: ours.store.clone(),
                style: Style::part(if bad { Kind::Peer } else { Kind::Ours }, 0),
                value: ratio,
                range: None,
                ticks: Vec::new(),
                told,
                bad,
            })
        });
        Dots {
            title: title.into(),
            note: note.into(),
            x: Axis {
                title: "ours over the driver alone".into(),
                scale: Scale::Linear,
                written: |value| format!("{}×", number::plain(value)),
            },
            groups: vec![Group { name: String::new(), rows: rows.collect() }],
            lines: vec![(goal, format!("goal {goal}×"))],
            bars: true,
            legend: vec![
                (Style::part(Kind::Ours, 0), "within the goal".into()),
                (Style::part(Kind::Peer, 0), "misses the goal".into()),
            ],
        }
        .draw()
    };
    let time = figure(
        "Uncontended p50 over the driver alone",
        "Shorter is better: 1 would be no cost at all.",
        terms::CYCLE,
        Metric::P50,
        OVER_FLOOR,
    );
    let rate = figure(
        "64 names at once: rate over the driver alone",
        "Longer is better.",
        terms::NAMES,
        Metric::Rate,
        NAMES_FLOOR,
    );
    time.into_iter().chain(rate).collect()
}

/// Ours beside the other libraries, a plot a store: how many times better.
pub(in crate::report) fn leads(view: View<'_>) -> Vec<String> {
    let mut figures = Vec::new();
    for store in view.stores() {
        let matches = verdicts::matches(view, store);
        let groups = view.peers(store).into_iter().enumerate().map(|(n, peer)| {
            let rows = matches.iter().filter(|m| m.peer.id == peer.id).filter_map(|m| {
                let lead = m.lead()?;
                let worse = m.verdict == Verdict::Worse;
                let value = |value| terms::value(m.metric, value);
                let how = match m.verdict {
                    Verdict::Better => "",
                    Verdict::Same => " level",
                    Verdict::Worse => " we lose",
                };
                Some(Row {
                    name: m.what.into(),
                    style: Style::part(Kind::Peer, n),
                    value: lead,
                    range: Some((lead.min(1.0), lead.max(1.0))),
                    ticks: Vec::new(),
                    told: format!("{} : {}{how}", value(m.ours.median), value(m.theirs.median)),
                    bad: worse,
                })
            });
            Group { name: peer.library.clone(), rows: rows.collect() }
        });
        let plot = Dots {
            title: format!("{store} beside other libraries"),
            note: "Left of the line the other is better. Beside each: ours : the other's.".into(),
            x: Axis {
                title: "how many times better ours is (log)".into(),
                scale: Scale::Log,
                written: |value| format!("{}×", number::short(value)),
            },
            groups: groups.collect(),
            lines: vec![(1.0, "level".into())],
            bars: false,
            legend: Vec::new(),
        };
        figures.extend(plot.draw());
    }
    figures
}
