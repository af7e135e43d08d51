//! What session locks cannot do, on whatever server.

use onelock_conformance::case::Need;

/// Why; `foreign` says what becomes of locks that others take.
pub(crate) fn why(need: Need, foreign: &str) -> Option<String> {
    let why = match need {
        Need::Connections => "each lock has a connection of its own",
        Need::Thousands => "each lock has a connection of its own, and a server has no thousands",
        Need::Reconnect => {
            "a lock ends with its connection, and each end learns it for itself: two may believe, and tokens \
             tell them apart"
        }
        Need::Foreign => foreign,
        Need::WaiterLease => "a waiter leaves the server's queue with its connection",
        Need::Line => "the server shows who waits neither with a number nor with a note",
        _ => return None,
    };
    Some(why.to_owned())
}
