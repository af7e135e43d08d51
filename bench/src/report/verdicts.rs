//! Which of two figures is better, and where we are against others.

use super::terms::{self, Point};
use super::view::{self, View};
use crate::data::{Figure, Metric, SubjectInfo};

/// A figure against another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Better,
    Worse,
    /// The ranges of the rounds overlap.
    Same,
}

/// Whether `figure` is better than `than`. It is, or it is worse, only when all rounds say so.
pub(super) fn judge(metric: Metric, figure: &Figure, than: &Figure) -> Verdict {
    let more = if figure.least > than.most {
        true
    } else if figure.most < than.least {
        false
    } else {
        return Verdict::Same;
    };
    if more == terms::more_is_better(metric) { Verdict::Better } else { Verdict::Worse }
}

/// Ours against another library, in one figure.
pub(super) struct Match<'a> {
    pub(super) store: &'a str,
    pub(super) peer: &'a SubjectInfo,
    pub(super) what: &'static str,
    pub(super) metric: Metric,
    pub(super) ours: Figure,
    pub(super) theirs: Figure,
    pub(super) verdict: Verdict,
}

impl Match<'_> {
    /// How many times better ours is: below one when it is worse. Zero and nothing are not compared.
    pub(super) fn lead(&self) -> Option<f64> {
        let (ours, theirs) = (self.ours.median, self.theirs.median);
        let lead = if terms::more_is_better(self.metric) {
            view::ratio(ours, theirs)
        } else {
            view::ratio(theirs, ours)
        };
        lead.filter(|&lead| lead > 0.0)
    }
}

/// In what libraries are compared.
pub(super) const MATCHES: [(Point, Metric, &str); 10] = [
    (terms::CYCLE, Metric::P50, "uncontended p50"),
    (terms::CYCLE, Metric::P99, "uncontended p99"),
    (terms::CYCLE, Metric::RoundTrips, "round trips a cycle"),
    (terms::NAMES, Metric::Rate, "64 names, cycles/s"),
    (terms::CONTENDED, Metric::OwnerChanges, "8 contenders, owner changes/s"),
    (terms::CONTENDED, Metric::Jain, "8 contenders, Jain index"),
    (terms::HAND_OVER, Metric::P50, "hand-over p50"),
    (terms::HAND_OVER, Metric::P99, "hand-over p99"),
    (terms::DUTY, Metric::InUse, "time in use"),
    (terms::IDLE, Metric::ServerRate, "64 idle waiters, requests/s"),
];

/// All comparisons of a store with the libraries beside it.
pub(super) fn matches<'a>(view: View<'a>, store: &'a str) -> Vec<Match<'a>> {
    let Some(ours) = view.ours(store) else { return Vec::new() };
    let mut found = Vec::new();
    for peer in view.peers(store) {
        for (point, metric, what) in MATCHES {
            let figure = |subject| view.figure(subject, point, metric);
            if let (Some(ours), Some(theirs)) = (figure(ours), figure(peer)) {
                let verdict = judge(metric, &ours, &theirs);
                found.push(Match { store, peer, what, metric, ours, theirs, verdict });
            }
        }
    }
    found
}
