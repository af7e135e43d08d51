//! A run as the report asks for it: which subjects belong to a store, and a subject's figures.

use super::terms::Point;
use crate::data::{Figure, Kind, Metric, Outcome, Run, SubjectInfo, WorkloadInfo};

/// A run, looked into.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    run: &'a Run,
}

/// A subject within its store: what it is called there.
#[derive(Clone)]
pub(super) struct Part<'a> {
    pub(super) subject: &'a SubjectInfo,
    pub(super) name: String,
}

impl<'a> View<'a> {
    pub(super) fn new(run: &'a Run) -> Self {
        Self { run }
    }

    pub(super) fn run(&self) -> &'a Run {
        self.run
    }

    /// The stores, as they come: of ours first, then those with others only.
    pub(super) fn stores(&self) -> Vec<&'a str> {
        let (ours, others): (Vec<_>, Vec<_>) =
            self.run.subjects.iter().partition(|subject| subject.kind == Kind::Ours);
        let mut stores: Vec<&str> = Vec::new();
        for subject in ours.into_iter().chain(others) {
            if !stores.contains(&subject.store.as_str()) {
                stores.push(&subject.store);
            }
        }
        stores
    }

    pub(super) fn ours(&self, store: &str) -> Option<&'a SubjectInfo> {
        self.run.subjects.iter().find(|subject| subject.kind == Kind::Ours && subject.store == store)
    }

    /// The driver alone.
    pub(super) fn baseline(&self, store: &str) -> Option<&'a SubjectInfo> {
        self.run.subjects.iter().find(|subject| subject.kind == Kind::Baseline && subject.store == store)
    }

    /// Other libraries that are compared with this store.
    pub(super) fn peers(&self, store: &str) -> Vec<&'a SubjectInfo> {
        self.run
            .subjects
            .iter()
            .filter(|subject| subject.kind == Kind::Peer && subject.store == store)
            .collect()
    }

    /// All subjects of a store: ours, the driver alone, the others.
    pub(super) fn parts(&self, store: &str) -> Vec<Part<'a>> {
        let ours = self.ours(store).map(|subject| Part { subject, name: "onelock".into() });
        let baseline = self.baseline(store).map(|subject| Part { subject, name: "driver alone".into() });
        let peers =
            self.peers(store).into_iter().map(|subject| Part { subject, name: subject.library.clone() });
        ours.into_iter().chain(baseline).chain(peers).collect()
    }

    /// The subject of that id.
    pub(super) fn subject(&self, id: &str) -> Option<&'a SubjectInfo> {
        self.run.subjects.iter().find(|subject| subject.id == id)
    }

    /// What a subject of that id is called: by its id when the run does not tell.
    pub(super) fn label(&self, id: &str) -> String {
        self.subject(id).map_or_else(|| id.to_owned(), SubjectInfo::label)
    }

    /// The workloads, as they come.
    pub(super) fn workloads(&self) -> Vec<&'a str> {
        let mut workloads: Vec<&str> =
            self.run.workloads.iter().map(|workload| workload.id.as_str()).collect();
        for outcome in &self.run.outcomes {
            if !workloads.contains(&outcome.workload.as_str()) {
                workloads.push(&outcome.workload);
            }
        }
        workloads
    }

    /// What the run tells of a workload.
    pub(super) fn about(&self, workload: &str) -> Option<&'a WorkloadInfo> {
        self.run.workloads.iter().find(|info| info.id == workload)
    }

    /// All outcomes of a workload for a subject.
    pub(super) fn outcomes(&self, subject: &str, workload: &str) -> impl Iterator<Item = &'a Outcome> {
        self.run
            .outcomes
            .iter()
            .filter(move |outcome| outcome.subject == subject && outcome.workload == workload)
    }

    /// The outcome at a point.
    pub(super) fn outcome(&self, subject: &SubjectInfo, point: Point) -> Option<&'a Outcome> {
        self.outcomes(&subject.id, point.workload).find(|outcome| outcome.size == point.size)
    }

    /// A figure at a point.
    pub(super) fn figure(&self, subject: &SubjectInfo, point: Point, metric: Metric) -> Option<Figure> {
        self.outcome(subject, point).and_then(|outcome| figure(outcome, metric))
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
