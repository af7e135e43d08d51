//! Where we stand: against the driver alone, and against other libraries.

use super::{LOSSES, NAMES_GOAL, OVER_BASELINE, near, of};
use crate::data::Metric;
use crate::report::table::{Cell, Look, Table, numbers, words};
use crate::report::verdicts::{self, Verdict};
use crate::report::view::{self, View};
use crate::report::{number, terms};

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
    ];
    let mut rows = Vec::new();
    for store in view.stores() {
        let Some(ours) = view.ours(store) else { continue };
        let ratio = view.over_baseline(ours, terms::CYCLE, Metric::P50).map(number::times);
        rows.push(vec![
            Cell::plain(store),
            of(view, ours, terms::CYCLE, Metric::P50),
            Cell::maybe(ratio),
            of(view, ours, terms::CYCLE, Metric::RoundTrips),
            of(view, ours, terms::NAMES, Metric::Rate),
            of(view, ours, terms::CONTENDED, Metric::OwnerChanges),
            of(view, ours, terms::HAND_OVER, Metric::P50),
            of(view, ours, terms::DUTY, Metric::InUse),
            of(view, ours, terms::CONTENDED, Metric::Jain),
            standing(view, store),
        ]);
    }
    let mut columns = vec![words("store")];
    columns.extend(head.map(numbers));
    columns.push(numbers("against other libraries: better / level / worse"));
    Table {
        id: "summary".into(),
        title: "Summary".into(),
        note: "A cycle is acquire and release. Over the driver: its p50 over that of two bare requests by the store's \
               driver alone, in the same run. In use: the share of the time in which a lock of 2 ms is held, with eight contenders."
            .into(),
        head: columns,
        rows,
    }
    .trimmed()
}

/// Where a store is against other libraries, in a word.
fn standing(view: View<'_>, store: &str) -> Cell {
    let matches = verdicts::matches(view, store);
    if matches.is_empty() {
        return Cell::maybe(None);
    }
    let count = |verdict| matches.iter().filter(|m| m.verdict == verdict).count();
    let worse = count(Verdict::Worse);
    let told = format!("{} / {} / {worse}", count(Verdict::Better), count(Verdict::Same));
    Cell::plain(told).look(if worse > 0 { Look::Bad } else { Look::Good })
}

/// Where another library is better than ours; `None` when there is none beside it.
pub(in crate::report) fn losses(view: View<'_>) -> Option<Table> {
    let matches: Vec<_> =
        view.stores().into_iter().flat_map(|store| verdicts::matches(view, store)).collect();
    let worse: Vec<_> = matches.iter().filter(|m| m.verdict == Verdict::Worse).collect();
    let note = if worse.is_empty() {
        format!("In none of the {} comparisons is another library better beyond the spread.", matches.len())
    } else {
        format!(
            "In {} of the {} comparisons another library is better, in all rounds.",
            worse.len(),
            matches.len()
        )
    };
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for each in worse {
        let value = |value| terms::value(each.metric, value);
        let by = each.lead().map(|lead| format!(", {}", number::times(1.0 / lead))).unwrap_or_default();
        let told = format!("{} {} : {}{by}", each.what, value(each.ours.median), value(each.theirs.median));
        let [store, library] = [each.store, &each.peer.library];
        match rows.last_mut().map(Vec::as_mut_slice) {
            Some([last, of, all]) if last.text == store && of.text == *library => {
                all.text.push_str("; ");
                all.text.push_str(&told);
            }
            _ => rows.push(vec![Cell::plain(store), Cell::plain(library), Cell::plain(told)]),
        }
    }
    let table = Table {
        id: LOSSES.into(),
        title: "Where another library is better".into(),
        note,
        head: vec![words("store"), words("library"), words("in what, ours : the other's")],
        rows,
    };
    (!matches.is_empty()).then_some(table)
}

/// Ours over the driver alone.
pub(in crate::report) fn ratios(view: View<'_>) -> Table {
    let mut rows = Vec::new();
    for store in view.stores() {
        let (Some(ours), Some(baseline)) = (view.ours(store), view.baseline(store)) else { continue };
        let goal = |point, metric, limit: f64| {
            let Some(ratio) = view.over_baseline(ours, point, metric) else { return Cell::maybe(None) };
            let missed = if terms::more_is_better(metric) { ratio < limit } else { ratio > limit };
            let cell = Cell::plain(near(ratio, limit));
            if missed { cell.look(Look::Bad) } else { cell }
        };
        let free = |point, metric| Cell::maybe(view.over_baseline(ours, point, metric).map(number::times));
        let trip = view.figure(baseline, terms::ROUND_TRIP, Metric::P50).map(|trip| trip.median);
        let trips = view
            .figure(ours, terms::HAND_OVER, Metric::P50)
            .and_then(|hand_over| view::ratio(hand_over.median, trip?));
        rows.push(vec![
            Cell::plain(store),
            goal(terms::CYCLE, Metric::P50, OVER_BASELINE),
            free(terms::CYCLE, Metric::P99),
            goal(terms::NAMES, Metric::Rate, NAMES_GOAL),
            Cell::maybe(trip.map(number::time)),
            Cell::maybe(trips.map(number::times)),
            Cell::plain(&baseline.library),
        ]);
    }
    Table {
        id: "baseline".into(),
        title: "Over the driver alone".into(),
        note: format!(
            "Ours over two bare requests by the store's driver, in the same run. The goals: uncontended p50 at most \
             {OVER_BASELINE}×, 64 names at least {NAMES_GOAL}×; what misses its goal is bold. A round trip is the least that the server \
             answers."
        ),
        head: vec![
            words("store"),
            numbers("uncontended p50"),
            numbers("uncontended p99"),
            numbers("64 names, cycles/s"),
            numbers("a round trip, p50"),
            numbers("hand-over p50 in round trips"),
            words("driver"),
        ],
        rows,
    }
    .trimmed()
}

/// Other libraries beside ours.
pub(in crate::report) fn peers(view: View<'_>) -> Table {
    let mut rows = Vec::new();
    for store in view.stores() {
        let Some(ours) = view.ours(store) else { continue };
        let peers = view.peers(store);
        if peers.is_empty() {
            continue;
        }
        let mut row = vec![Cell::plain(store), Cell::plain("onelock")];
        row.extend(verdicts::MATCHES.map(|(point, metric, _)| of(view, ours, point, metric)));
        rows.push(row);
        for peer in peers {
            let mut row = vec![Cell::plain(store), Cell::plain(&peer.library)];
            row.extend(verdicts::MATCHES.map(|(point, metric, _)| {
                let cell = of(view, peer, point, metric);
                let (Some(ours), Some(theirs)) =
                    (view.figure(ours, point, metric), view.figure(peer, point, metric))
                else {
                    return cell;
                };
                match verdicts::judge(metric, &ours, &theirs) {
                    Verdict::Worse => Cell::plain(format!("{}\n(we lose)", cell.text)).look(Look::Bad),
                    Verdict::Same => Cell::plain(format!("{}\n(level)", cell.text)),
                    Verdict::Better => cell,
                }
            }));
            rows.push(row);
        }
    }
    let head = verdicts::MATCHES.map(|(_, _, head)| numbers(head));
    Table {
        id: "peers".into(),
        title: "Beside other libraries".into(),
        note: "On the same server, in the same run. “We lose” where the other is better in all rounds, “level” where the rounds' \
               ranges overlap; otherwise ours is better."
            .into(),
        head: [words("store"), words("library")].into_iter().chain(head).collect(),
        rows,
    }
    .trimmed()
}
