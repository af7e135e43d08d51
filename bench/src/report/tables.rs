//! The tables of a report.

use super::number;
use super::table::{Cell, Look, Table, numbers, words};
use super::terms::{self, Point};
use super::verdicts::{self, Verdict};
use super::view::{self, Part, View};
use crate::data::{Kind, Metric, Run, SubjectInfo};

/// The goal of the whole way over the driver alone: fifteen in a hundred.
pub(super) const OVER_FLOOR: f64 = 1.15;
/// The goal of many names at once against the driver alone.
pub(super) const NAMES_FLOOR: f64 = 0.9;

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
    if machine.load > 0.5 * machine.cores as f64 {
        facts.push(
            "The machine was busy with other things: trust counts, and times only beside times of this run."
                .into(),
        );
    }
    if let Some((half, worst)) = spread(run) {
        facts.push(format!(
            "Between the rounds, the median latency of half of the measurements was apart by less than {}, of the worst by {}.",
            number::share(half),
            number::share(worst)
        ));
    }
    facts
}

/// How far the rounds' p50 are apart, of its median: in half of the outcomes, and at worst.
fn spread(run: &Run) -> Option<(f64, f64)> {
    let figures = run.outcomes.iter().filter_map(|outcome| view::figure(outcome, Metric::P50));
    let mut apart: Vec<f64> =
        figures.filter_map(|figure| view::ratio(figure.most - figure.least, figure.median)).collect();
    apart.sort_by(f64::total_cmp);
    Some((*apart.get(apart.len() / 2)?, *apart.last()?))
}

/// All tables, in the order of a text.
pub(super) fn all(run: &Run) -> Vec<Table> {
    let view = View::new(run);
    let mut tables = vec![summary(view)];
    tables.extend(losses(view));
    tables.extend([ratios(view), requests(view), peers(view), fairness(view), costs(view)]);
    tables.extend([left_out(view), subjects(view)]);
    tables.extend(view.workloads().into_iter().map(|workload| everything(view, workload)));
    tables.retain(|table| !table.rows.is_empty() || table.id == "losses");
    tables
}

/// The value of a figure.
fn of(view: View<'_>, subject: &SubjectInfo, point: Point, metric: Metric) -> Cell {
    Cell::maybe(view.figure(subject, point, metric).map(|figure| terms::value(metric, figure.median)))
}

/// Stores, and the few figures that matter.
pub(super) fn summary(view: View<'_>) -> Table {
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
        let ratio = view.over_floor(ours, terms::CYCLE, Metric::P50).map(number::times);
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
        note: "A cycle is acquire and release. Over the driver: its p50 over that of the same requests by the store's driver \
               alone, in the same run. In use: the share of the time in which a lock of 2 ms is held, with eight contenders."
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
pub(super) fn losses(view: View<'_>) -> Option<Table> {
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
        id: "losses".into(),
        title: "Where another library is better".into(),
        note,
        head: vec![words("store"), words("library"), words("in what, ours : the other's")],
        rows,
    };
    (!matches.is_empty()).then_some(table)
}

/// Ours over the driver alone.
pub(super) fn ratios(view: View<'_>) -> Table {
    let mut rows = Vec::new();
    for store in view.stores() {
        let (Some(ours), Some(floor)) = (view.ours(store), view.floor(store)) else { continue };
        let goal = |point, metric, limit: f64| {
            let Some(ratio) = view.over_floor(ours, point, metric) else { return Cell::maybe(None) };
            let missed = if terms::more_is_better(metric) { ratio < limit } else { ratio > limit };
            let cell = Cell::plain(near(ratio, limit));
            if missed { cell.look(Look::Bad) } else { cell }
        };
        let free = |point, metric| Cell::maybe(view.over_floor(ours, point, metric).map(number::times));
        let trip = view.figure(floor, terms::ROUND_TRIP, Metric::P50).map(|trip| trip.median);
        let trips = view
            .figure(ours, terms::HAND_OVER, Metric::P50)
            .and_then(|hand_over| view::ratio(hand_over.median, trip?));
        rows.push(vec![
            Cell::plain(store),
            goal(terms::CYCLE, Metric::P50, OVER_FLOOR),
            free(terms::CYCLE, Metric::P99),
            goal(terms::NAMES, Metric::Rate, NAMES_FLOOR),
            free(terms::CONTENDED, Metric::OwnerChanges),
            free(terms::DUTY, Metric::InUse),
            Cell::maybe(trip.map(number::time)),
            Cell::maybe(trips.map(number::times)),
            Cell::plain(&floor.library),
        ]);
    }
    Table {
        id: "floor".into(),
        title: "Over the driver alone".into(),
        note: format!(
            "Ours over the same requests by the store's driver without us, in the same run. The goals: uncontended p50 at most \
             {OVER_FLOOR}×, 64 names at least {NAMES_FLOOR}×; what misses its goal is bold. A round trip is the least that the server answers."
        ),
        head: vec![
            words("store"),
            numbers("uncontended p50"),
            numbers("uncontended p99"),
            numbers("64 names, cycles/s"),
            numbers("owner changes/s"),
            numbers("in use"),
            numbers("a round trip, p50"),
            numbers("hand-over p50 in round trips"),
            words("driver"),
        ],
        rows,
    }
    .trimmed()
}

/// A ratio, with enough digits to tell it from its goal.
pub(super) fn near(ratio: f64, goal: f64) -> String {
    let told = number::times(ratio);
    if ratio != goal && told == number::times(goal) { format!("{ratio:.3}×") } else { told }
}

/// All that is drawn for each part of each store: a row each.
pub(super) fn by_part(
    view: View<'_>,
    kinds: &[Kind],
    row: impl Fn(&Part<'_>) -> Vec<Cell>,
) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    for store in view.stores() {
        for part in view.home(store).iter().filter(|part| kinds.contains(&part.subject.kind)) {
            let mut cells = vec![Cell::plain(&part.subject.store), Cell::plain(&part.name)];
            let more = row(part);
            if more.iter().any(|cell| cell.text != "–") {
                cells.extend(more);
                rows.push(cells);
            }
        }
    }
    rows
}

/// Round trips and what the server counted.
pub(super) fn requests(view: View<'_>) -> Table {
    let columns = [
        (terms::CYCLE, Metric::RoundTrips, "cycle: round trips"),
        (terms::CYCLE, Metric::ServerRequests, "cycle: server requests"),
        (terms::TRY_BUSY, Metric::RoundTrips, "try on a busy lock: round trips"),
        (terms::TRY_BUSY, Metric::ServerRequests, "try on a busy lock: server requests"),
        (terms::REENTRY, Metric::RoundTrips, "re-entry: round trips"),
        (terms::NAMES, Metric::ServerRequests, "64 names: server requests"),
        (terms::CONTENDED, Metric::RoundTrips, "8 contenders: round trips"),
        (terms::CONTENDED, Metric::ServerRequests, "8 contenders: server requests"),
    ];
    wide(
        view,
        ("requests", "Round trips and requests"),
        "Per operation. Requests that are sent together are one round trip; the server counts each, and for a script or a \
         transaction what it counts.",
        &columns,
    )
}

/// What it costs to wait and to hold.
pub(super) fn costs(view: View<'_>) -> Table {
    let columns = [
        (terms::IDLE, Metric::ServerRate, "64 idle clients: server requests/s"),
        (terms::IDLE, Metric::ClientCpu, "64 idle clients: CPU, of a core"),
        (terms::IDLE_TASKS, Metric::ServerRate, "64 idle tasks: server requests/s"),
        (terms::IDLE_TASKS, Metric::ClientCpu, "64 idle tasks: CPU, of a core"),
        (terms::WAITERS, Metric::Memory, "memory a waiter"),
        (terms::HELD, Metric::ServerRate, "held locks: server requests/s"),
        (terms::HELD, Metric::ClientCpu, "held locks: CPU, of a core"),
        (terms::HELD, Metric::Memory, "memory a held lock"),
        (terms::CONNECT, Metric::P50, "connection to first lock, p50"),
        (terms::TAKEOVER, Metric::P50, "takeover after a crash, p50"),
    ];
    wide(view, ("costs", "What waiting and holding costs"), "", &columns)
}

/// Order and shares.
pub(super) fn fairness(view: View<'_>) -> Table {
    let columns = [
        (terms::CONTENDED, Metric::Jain, "8 contenders in order: Jain index"),
        (terms::CONTENDED, Metric::Inversions, "8 contenders in order: inversions ‰"),
        (terms::UNFAIR, Metric::Jain, "8 contenders, unfair: Jain index"),
        (terms::UNFAIR, Metric::Inversions, "8 contenders, unfair: inversions ‰"),
        (terms::UNFAIR, Metric::OwnerChanges, "8 contenders, unfair: owner changes/s"),
        (terms::DUTY, Metric::InUse, "in use"),
    ];
    wide(
        view,
        ("fairness", "Fairness and time in use"),
        "Jain's index of the contenders' shares is 1 when all got the same. An inversion is a grant that overtook an older request. \
         In use: the share of the time in which a lock of 2 ms is held, by eight contenders who think for 5 ms.",
        &columns,
    )
}

fn wide(view: View<'_>, (id, title): (&str, &str), note: &str, columns: &[(Point, Metric, &str)]) -> Table {
    let rows = by_part(view, &[Kind::Ours, Kind::Floor, Kind::Peer], |part| {
        columns.iter().map(|&(point, metric, _)| of(view, part.subject, point, metric)).collect()
    });
    let head = columns.iter().map(|(_, _, head)| numbers(head));
    Table {
        id: id.into(),
        title: title.into(),
        note: note.into(),
        head: [words("store"), words("what")].into_iter().chain(head).collect(),
        rows,
    }
    .trimmed()
}

/// Other libraries beside ours.
pub(super) fn peers(view: View<'_>) -> Table {
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

/// What was left out, and why.
pub(super) fn left_out(view: View<'_>) -> Table {
    let rows = view.run().left_out.iter().map(|left| {
        let size = if left.size.is_empty() { String::new() } else { format!(", {}", left.size) };
        vec![
            Cell::plain(view.label(&left.subject)),
            Cell::plain(format!("{}{size}", terms::title(&left.workload))),
            Cell::plain(&left.why),
        ]
    });
    Table {
        id: "left-out".into(),
        title: "Left out".into(),
        note: String::new(),
        head: vec![words("what"), words("workload"), words("why")],
        rows: rows.collect(),
    }
}

/// What was measured.
pub(super) fn subjects(view: View<'_>) -> Table {
    let rows = view.run().subjects.iter().map(|subject| {
        let kind = match subject.kind {
            Kind::Ours => "onelock",
            Kind::Floor => "driver alone",
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

/// All figures of a workload: medians, with the ranges of the rounds.
pub(super) fn everything(view: View<'_>, workload: &str) -> Table {
    let outcomes: Vec<_> =
        view.run().outcomes.iter().filter(|outcome| outcome.workload == workload).collect();
    let has = |metric: &Metric| outcomes.iter().any(|outcome| view::figure(outcome, *metric).is_some());
    let metrics: Vec<Metric> = Metric::ALL.into_iter().filter(has).collect();
    let sized = outcomes.iter().any(|outcome| !outcome.size.is_empty());
    let remarks = outcomes.iter().any(|outcome| outcome.remark.is_some());
    let row = |outcome: &&&crate::data::Outcome| {
        let mut row = vec![Cell::plain(view.label(&outcome.subject))];
        row.extend(sized.then(|| Cell::plain(&outcome.size)));
        row.extend(metrics.iter().map(|&metric| {
            Cell::maybe(view::figure(outcome, metric).map(|figure| {
                let told = |value| terms::value(metric, value);
                if figure.least == figure.most {
                    return told(figure.median);
                }
                format!("{} ({} … {})", told(figure.median), told(figure.least), told(figure.most))
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
        title: format!("{}: all figures", terms::title(workload)),
        note: note.unwrap_or_default(),
        head,
        rows: outcomes.iter().map(|outcome| row(&outcome)).collect(),
    }
}
