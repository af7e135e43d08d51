//! Where we stand: against the driver alone, and against other libraries.

use crate::data::{Metric, SubjectInfo};
use crate::report::number;
use crate::report::table::{Cell, Emphasis, Table};
use crate::report::terms::{self, Point};
use crate::report::verdicts::{self, MATCHES, Verdict};
use crate::report::view::{self, View};

/// The goal of the whole way over the driver alone: fifteen in a hundred.
const OVER_BASELINE: f64 = 1.15;
/// The goal of many names at once against the driver alone.
const NAMES_GOAL: f64 = 0.9;

/// The value of a figure.
fn value(view: View<'_>, subject: &SubjectInfo, point: Point, metric: Metric) -> Cell {
    Cell::maybe(view.figure(subject, point, metric).map(|figure| terms::value(metric, figure.median)))
}

/// Stores, and the few figures that matter.
pub(in crate::report) fn summary(view: View<'_>) -> Table {
    let head = [
        "uncontended p50",
        "over the driver",
        "round trips",
        "64 names, cycles/s",
        "8 contenders, owner changes/s",
        "hand-over p50",
        "in use",
        "Jain index",
        "against other libraries: better / level / worse",
    ];
    let mut table = Table::new("summary", "Summary", &["store"], &head);
    table.note = "A cycle is acquire and release. Over the driver: its p50 over that of two bare requests by the store's \
                  driver alone, in the same run. In use: the share of the time in which a lock of 2 ms is held, with eight \
                  contenders."
        .into();
    for store in view.stores() {
        let Some(ours) = view.ours(store) else { continue };
        let value = |point, metric| value(view, ours, point, metric);
        table.rows.push(vec![
            Cell::plain(store),
            value(terms::CYCLE, Metric::P50),
            Cell::maybe(view.over_baseline(ours, terms::CYCLE, Metric::P50).map(number::times)),
            value(terms::CYCLE, Metric::RoundTrips),
            value(terms::NAMES, Metric::Rate),
            value(terms::CONTENDED, Metric::OwnerChanges),
            value(terms::HAND_OVER, Metric::P50),
            value(terms::DUTY, Metric::InUse),
            value(terms::CONTENDED, Metric::Jain),
            standing(view, ours),
        ]);
    }
    table.trimmed()
}

/// Where a store is against other libraries, in a word.
fn standing(view: View<'_>, ours: &SubjectInfo) -> Cell {
    let peers = view.peers(&ours.store).into_iter();
    let all: Vec<_> = peers.flat_map(|peer| verdicts::against(view, ours, peer)).flatten().collect();
    if all.is_empty() {
        return Cell::maybe(None);
    }
    let [better, level, worse] = [Verdict::Better, Verdict::Same, Verdict::Worse]
        .map(|verdict| all.iter().filter(|&&each| each == verdict).count());
    let look = if worse > 0 { Emphasis::Bad } else { Emphasis::Good };
    Cell::plain(format!("{better} / {level} / {worse}")).look(look)
}

/// A ratio, with enough digits to tell it from its goal.
fn near(ratio: f64, goal: f64) -> String {
    let told = number::times(ratio);
    if ratio != goal && told == number::times(goal) { format!("{ratio:.3}×") } else { told }
}

/// Ours over the driver alone.
pub(in crate::report) fn ratios(view: View<'_>) -> Table {
    let head = [
        "uncontended p50",
        "uncontended p99",
        "64 names, cycles/s",
        "a round trip, p50",
        "hand-over p50 in round trips",
    ];
    let mut table = Table::new("baseline", "Over the driver alone", &["store"], &head);
    table.head.push(("driver".to_owned(), false));
    table.note = format!(
        "Ours over two bare requests by the store's driver, in the same run. The goals: uncontended p50 at most \
         {OVER_BASELINE}×, 64 names at least {NAMES_GOAL}×; what misses its goal is bold. A round trip is the least that the server \
         answers."
    );
    for store in view.stores() {
        let (Some(ours), Some(baseline)) = (view.ours(store), view.baseline(store)) else { continue };
        let goal = |point, metric, limit: f64| {
            let Some(ratio) = view.over_baseline(ours, point, metric) else { return Cell::maybe(None) };
            let missed = if terms::more_is_better(metric) { ratio < limit } else { ratio > limit };
            let cell = Cell::plain(near(ratio, limit));
            if missed { cell.look(Emphasis::Bad) } else { cell }
        };
        let trip = view.figure(baseline, terms::ROUND_TRIP, Metric::P50).map(|trip| trip.median);
        let hand_over = view.figure(ours, terms::HAND_OVER, Metric::P50);
        let trips = hand_over.and_then(|hand_over| view::ratio(hand_over.median, trip?));
        table.rows.push(vec![
            Cell::plain(store),
            goal(terms::CYCLE, Metric::P50, OVER_BASELINE),
            Cell::maybe(view.over_baseline(ours, terms::CYCLE, Metric::P99).map(number::times)),
            goal(terms::NAMES, Metric::Rate, NAMES_GOAL),
            Cell::maybe(trip.map(number::time)),
            Cell::maybe(trips.map(number::times)),
            Cell::plain(&baseline.library),
        ]);
    }
    table.trimmed()
}

/// Other libraries beside ours.
pub(in crate::report) fn peers(view: View<'_>) -> Table {
    let head = MATCHES.map(|(_, _, head)| head);
    let mut table = Table::new("peers", "Beside other libraries", &["store", "library"], &head);
    table.note = "On the same server, in the same run. “We lose” where the other is better in all rounds, “level” where the rounds' \
                  ranges overlap; otherwise ours is better."
        .into();
    for store in view.stores() {
        let (Some(ours), peers) = (view.ours(store), view.peers(store)) else { continue };
        let figures = |subject| MATCHES.map(|(point, metric, _)| value(view, subject, point, metric));
        let row = |library: &str, figures: Vec<Cell>| {
            [vec![Cell::plain(store), Cell::plain(library)], figures].concat()
        };
        if !peers.is_empty() {
            table.rows.push(row("onelock", figures(ours).into()));
        }
        for peer in peers {
            let judged = figures(peer).into_iter().zip(verdicts::against(view, ours, peer));
            let told = judged.map(|(cell, verdict)| match verdict {
                Some(Verdict::Worse) => Cell::plain(format!("{}\n(we lose)", cell.text)).look(Emphasis::Bad),
                Some(Verdict::Same) => Cell::plain(format!("{}\n(level)", cell.text)),
                Some(Verdict::Better) | None => cell,
            });
            table.rows.push(row(&peer.library, told.collect()));
        }
    }
    table.trimmed()
}
