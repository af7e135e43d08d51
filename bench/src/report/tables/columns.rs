//! Tables with a row for each subject and a column for each figure.

use super::of;
use crate::data::{Kind, Metric};
use crate::report::table::{Cell, Table, numbers, words};
use crate::report::terms::{self, Point};
use crate::report::view::{Part, View};

/// Round trips and what the server counted.
pub(in crate::report) fn requests(view: View<'_>) -> Table {
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
pub(in crate::report) fn costs(view: View<'_>) -> Table {
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
pub(in crate::report) fn fairness(view: View<'_>) -> Table {
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

/// A row for each subject of these kinds that has any of it.
fn by_part(view: View<'_>, kinds: &[Kind], row: impl Fn(&Part<'_>) -> Vec<Cell>) -> Vec<Vec<Cell>> {
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
