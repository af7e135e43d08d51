//! A run as the report asks for it: which subjects belong to a store, and a subject's figures.

use super::terms::Point;
use crate::data::{Figure, Kind, Metric, Outcome, Run, SubjectInfo, WorkloadInfo};

/// A run, looked into.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) run: &'a Run,
}

/// Each of them once, as they come.
fn once<'a>(all: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let mut once: Vec<&str> = Vec::new();
    for each in all {
        if !once.contains(&each.as_str()) {
            once.push(each);
        }
    }
    once
}

impl<'a> View<'a> {
    pub(super) fn new(run: &'a Run) -> Self {
        Self { run }
    }

    /// The stores, as they come: of ours first, then those with others only.
    pub(super) fn stores(&self) -> Vec<&'a str> {
        let (ours, others): (Vec<_>, Vec<_>) =
            self.run.subjects.iter().partition(|subject| subject.kind == Kind::Ours);
        once(ours.into_iter().chain(others).map(|subject| &subject.store))
    }

    fn of(&self, store: &str, kind: Kind) -> impl Iterator<Item = &'a SubjectInfo> {
        self.run.subjects.iter().filter(move |subject| subject.kind == kind && subject.store == store)
    }

    pub(super) fn ours(&self, store: &str) -> Option<&'a SubjectInfo> {
        self.of(store, Kind::Ours).next()
    }

    /// The driver alone.
    pub(super) fn baseline(&self, store: &str) -> Option<&'a SubjectInfo> {
        self.of(store, Kind::Baseline).next()
    }

    /// Other libraries that are compared with this store.
    pub(super) fn peers(&self, store: &str) -> Vec<&'a SubjectInfo> {
        self.of(store, Kind::Peer).collect()
    }

    /// All subjects of a store, and what they are called there: ours, the driver alone, the others.
    pub(super) fn parts(&self, store: &str) -> Vec<(&'a SubjectInfo, String)> {
        let ours = self.ours(store).map(|subject| (subject, "onelock".to_owned()));
        let baseline = self.baseline(store).map(|subject| (subject, "driver alone".to_owned()));
        let peers = self.of(store, Kind::Peer).map(|subject| (subject, subject.library.clone()));
        ours.into_iter().chain(baseline).chain(peers).collect()
    }

    /// What a subject of that id is called: by its id when the run does not tell.
    pub(super) fn label(&self, id: &str) -> String {
        let subject = self.run.subjects.iter().find(|subject| subject.id == id);
        subject.map_or_else(|| id.to_owned(), SubjectInfo::label)
    }

    /// The workloads, as they come.
    pub(super) fn workloads(&self) -> Vec<&'a str> {
        let known = self.run.workloads.iter().map(|workload| &workload.id);
        once(known.chain(self.run.outcomes.iter().map(|outcome| &outcome.workload)))
    }

    /// What the run tells of a workload.
    pub(super) fn about(&self, workload: &str) -> Option<&'a WorkloadInfo> {
        self.run.workloads.iter().find(|info| info.id == workload)
    }

    /// All outcomes of a workload for a subject.
    pub(super) fn outcomes(&self, subject: &str, workload: &str) -> impl Iterator<Item = &'a Outcome> {
        let all = self.run.outcomes.iter();
        all.filter(move |outcome| outcome.subject == subject && outcome.workload == workload)
    }

    /// A figure at a point.
    pub(super) fn figure(&self, subject: &SubjectInfo, point: Point, metric: Metric) -> Option<Figure> {
        let mut sizes = self.outcomes(&subject.id, point.workload);
        figure(sizes.find(|outcome| outcome.size == point.size)?, metric)
    }

    /// A figure over that of the driver alone.
    pub(super) fn over_baseline(&self, ours: &SubjectInfo, point: Point, metric: Metric) -> Option<f64> {
        let baseline = self.figure(self.baseline(&ours.store)?, point, metric)?;
        ratio(self.figure(ours, point, metric)?.median, baseline.median)
    }
}

/// A figure of an outcome, if it is a number.
pub(super) fn figure(outcome: &Outcome, metric: Metric) -> Option<Figure> {
    let figure = outcome.figures.get(&metric)?;
    let median = Some(figure.median).filter(|value| value.is_finite())?;
    let or_median = |value: f64| if value.is_finite() { value } else { median };
    Some(Figure {
        median,
        least: or_median(figure.least).min(median),
        most: or_median(figure.most).max(median),
    })
}

/// A ratio, where there is one.
pub(super) fn ratio(value: f64, to: f64) -> Option<f64> {
    let ratio = value / to;
    (to > 0.0 && ratio.is_finite()).then_some(ratio)
}
