//! Eight clients or so want one lock: what they do, and what of it is told.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::crowd::{Crowd, Habit, crowd};
use super::{About, Effort, Size, Workload};
use crate::data::Metric;
use crate::measure::{Latencies, Sample};
use crate::subject::{Failure, Mode, Need, Subject};

/// How long a lock is held where others must have asked for it before it is given back.
pub(super) const HOLD: Duration = Duration::from_millis(2);
pub(super) const CONTENDERS: u32 = 8;
/// Which of two moments a hand-over begins with.
pub(super) const BEGIN: &str = "from begin";
pub(super) const ANSWER: &str = "from answer";

pub(super) struct Crowded {
    about: About,
    sizes: fn(&Effort) -> Vec<Size>,
    habits: fn(&Size) -> Vec<Habit>,
    sample: fn(&Size, &Crowd) -> Result<Sample, Failure>,
}

#[async_trait]
impl Workload for Crowded {
    fn about(&self) -> About {
        self.about
    }

    fn sizes(&self, effort: &Effort) -> Vec<Size> {
        (self.sizes)(effort)
    }

    async fn run(&self, subject: &Arc<dyn Subject>, size: &Size, effort: &Effort) -> Result<Sample, Failure> {
        (self.sample)(size, &crowd(self.about.id, subject, &(self.habits)(size), effort).await?)
    }
}

const TO_THE_GRANT: &str = "from the call of acquire to the grant";

fn eight(_: &Effort) -> Vec<Size> {
    Size::only(CONTENDERS)
}

fn waits(_: &Size, crowd: &Crowd) -> Result<Sample, Failure> {
    Ok(crowd.exclusive(crowd.sample(|_| true)?))
}

pub(super) const CONTENDED: Crowded = Crowded {
    about: About::new(
        "contended",
        "Clients take one lock, give it back at once, and ask again at once: in the order of asking, or unfair.",
    )
    .latency(TO_THE_GRANT)
    .needs(&[Need::Wait]),
    sizes: |effort| {
        let most = if effort.small { 8 } else { 64 };
        let crowds: Vec<u32> = [2, 8, 64].into_iter().filter(|tasks| *tasks <= most).collect();
        let unfair = |tasks: &u32| Size { name: format!("{tasks} unfair"), tasks: *tasks, fair: false };
        crowds.iter().copied().map(Size::of).chain(crowds.iter().map(unfair)).collect()
    },
    habits: |size| vec![Habit::busy(Mode::Exclusive, size.fair); size.count()],
    sample: waits,
};

pub(super) const HAND_OVER: Crowded = Crowded {
    about: About::new(
        "hand-over",
        "Eight clients take one lock, hold it for 2 ms and ask again at once, so that others always wait for it: how long \
         it takes from one to the next.",
    )
    .latency(
        "to the moment the next owner knows that it holds: `from begin` from the call of release, which has the release's \
         own way to the server in it; `from answer` from the return of that call, and zero when the next owner knew before \
         that",
    )
    .needs(&[Need::Wait]),
    sizes: |_| [BEGIN, ANSWER].map(|name| Size { name: name.into(), tasks: CONTENDERS, fair: true }).into(),
    habits: |size| vec![Habit { hold: HOLD, ..Habit::busy(Mode::Exclusive, true) }; size.count()],
    sample: hand_over,
};

/// From one owner to the next.
pub(super) fn hand_over(size: &Size, crowd: &Crowd) -> Result<Sample, Failure> {
    let mut latencies = Latencies::new()?;
    for (before, after) in crowd.trace.changes() {
        let since = if size.name == BEGIN { before.leaving } else { before.left };
        latencies.add(after.granted.saturating_duration_since(since));
    }
    Ok(crowd.exclusive(crowd.sample_of(latencies)))
}

pub(super) const DUTY: Crowded = Crowded {
    about: About::new(
        "duty",
        "Eight clients take one lock, hold it for 2 ms and stay away for 5 ms: for which share of the time it is in use. \
         (Timers are a little late: what counts is how long it was really held.)",
    )
    .latency(TO_THE_GRANT)
    .needs(&[Need::Wait]),
    sizes: eight,
    habits: |size| {
        let think = Duration::from_millis(5);
        vec![Habit { hold: HOLD, think, ..Habit::busy(Mode::Exclusive, true) }; size.count()]
    },
    sample: waits,
};

pub(super) const READERS: Crowded = Crowded {
    about: About::new(
        "readers",
        "Seven clients share a lock that an eighth wants alone; each gives it back at once and asks again at once.",
    )
    .latency("of the one that wants it alone, from the call of acquire to the grant")
    .needs(&[Need::Wait, Need::Shared]),
    sizes: eight,
    habits: |size| {
        let reader = Habit::busy(Mode::Shared, true);
        let writer = Habit::busy(Mode::Exclusive, true);
        [writer].into_iter().chain(std::iter::repeat_n(reader, size.count() - 1)).collect()
    },
    sample: |_, crowd| {
        let mut sample = crowd.sample(|contender| contender == 0)?;
        // Readers and a writer do not have the same share, and should not.
        sample.figures.remove(&Metric::Jain);
        Ok(sample)
    },
};

pub(super) const PERMITS: Crowded = Crowded {
    about: About::new(
        "permits",
        "Eight clients take a semaphore with four permits, give their permit back at once and ask again at once.",
    )
    .latency(TO_THE_GRANT)
    .needs(&[Need::Wait, Need::Permits]),
    sizes: eight,
    habits: |size| vec![Habit::busy(Mode::Permit(4), true); size.count()],
    sample: |_, crowd| crowd.sample(|_| true),
};
