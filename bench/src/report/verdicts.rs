//! Which of two figures is better, and where we are against others.

use super::terms::{self, Point};
use super::view::View;
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

/// Ours against another library in each of the [`MATCHES`], where both have a figure.
pub(super) fn against(view: View<'_>, ours: &SubjectInfo, peer: &SubjectInfo) -> [Option<Verdict>; 10] {
    MATCHES.map(|(point, metric, _)| {
        let (ours, theirs) = (view.figure(ours, point, metric)?, view.figure(peer, point, metric)?);
        Some(judge(metric, &ours, &theirs))
    })
}
