//! Who contends for what, and what of it is told.

use std::time::Duration;

use super::crowd::{Crowd, Habit, all_at_once, crowd};
use super::{Size, Task, Workload};
use crate::data::Metric;
use crate::measure::Sample;
use crate::subject::{Failure, LockSpec, Mode, Need};

/// How long a lock is held where others must have asked for it before it is given back.
pub(super) const HOLD: Duration = Duration::from_millis(2);
pub(super) const CONTENDERS: u32 = 8;
/// Which of two moments a hand-over begins with.
pub(super) const BEGIN: &str = "from begin";
pub(super) const ANSWER: &str = "from answer";

const TO_THE_GRANT: &str = "from the call of acquire to the grant";

/// A workload of so many contenders as [`CONTENDERS`] says.
const fn eight(id: &'static str, about: &'static str, run: fn(&Task) -> super::Running<'_>) -> Workload {
    Workload {
        latency: Some(TO_THE_GRANT),
        needs: &[Need::Wait],
        sizes: |_| vec![Size::of("", CONTENDERS)],
        ..Workload::new(id, about, run)
    }
}

/// All contenders with one habit.
async fn alike(task: &Task, habit: Habit) -> Result<Crowd, Failure> {
    crowd(task, &vec![habit; task.size.count()]).await
}

pub(super) const NAMES: Workload = Workload {
    latency: Some("from the call of acquire to the answer to the release"),
    sizes: |effort| {
        let most = if effort.small { 64 } else { 512 };
        let sizes = [1, 8, 64, 512].into_iter().filter(|tasks| *tasks <= most);
        sizes.map(|tasks: u32| Size::of(&tasks.to_string(), tasks)).collect()
    },
    ..Workload::new(
        "names",
        "The tasks of one client take and give back locks, each a lock of its own, all at once.",
        |task| Box::pin(names(task)),
    )
};

async fn names(task: &Task) -> Result<Sample, Failure> {
    let client = task.connect().await?;
    // The first request of a connection may bring others with it.
    client.prepare(&LockSpec::exclusive(&task.name))?.take().await?.release().await?;
    let prepared = |n| client.prepare(&LockSpec::exclusive(&format!("{}-{n}", task.name)));
    let alone = Habit { alone: true, ..Habit::BUSY };
    let locks = (0..task.size.count()).map(|n| Ok((prepared(n)?, alone))).collect::<Result<_, Failure>>();
    let crowd = all_at_once(task, locks?).await?;
    client.close().await?;
    let mut sample = crowd.sample(crowd.trace.turns().map(|turn| turn.left.saturating_since(turn.asked)))?;
    // There is nothing to share.
    sample.figures.remove(&Metric::Jain);
    Ok(sample)
}

pub(super) const CONTENDED: Workload = Workload {
    sizes: |effort| {
        let most = if effort.small { 8 } else { 64 };
        let crowds = [2, 8, 64].into_iter().filter(move |tasks| *tasks <= most);
        let unfair = |tasks: u32| Size { fair: false, ..Size::of(&format!("{tasks} unfair"), tasks) };
        crowds
            .clone()
            .map(|tasks: u32| Size::of(&tasks.to_string(), tasks))
            .chain(crowds.map(unfair))
            .collect()
    },
    ..eight(
        "contended",
        "Clients take one lock, give it back at once, and ask again at once: in the order of asking, or unfair.",
        |task| {
            Box::pin(async move {
                let crowd = alike(task, Habit { fair: task.size.fair, ..Habit::BUSY }).await?;
                crowd.exclusive(crowd.waits(|_| true))
            })
        },
    )
};

pub(super) const HAND_OVER: Workload = Workload {
    latency: Some(
        "to the moment the next owner knows that it holds: `from begin` from the call of release, which has the release's \
         own way to the server in it; `from answer` from the return of that call, and zero when the next owner knew before \
         that",
    ),
    sizes: |_| [BEGIN, ANSWER].map(|name| Size::of(name, CONTENDERS)).into(),
    ..eight(
        "hand-over",
        "Eight clients take one lock, hold it for 2 ms and ask again at once, so that others always wait for it: how long \
         it takes from one to the next.",
        |task| {
            Box::pin(async move {
                hand_over(&task.size, &alike(task, Habit { hold: HOLD, ..Habit::BUSY }).await?)
            })
        },
    )
};

/// From one owner to the next.
pub(super) fn hand_over(size: &Size, crowd: &Crowd) -> Result<Sample, Failure> {
    crowd.exclusive(crowd.trace.changes().map(|(before, after)| {
        let since = if size.name == BEGIN { before.leaving } else { before.left };
        after.granted.saturating_since(since)
    }))
}

pub(super) const DUTY: Workload = eight(
    "duty",
    "Eight clients take one lock, hold it for 2 ms and stay away for 5 ms: for which share of the time it is in use. \
     (Timers are a little late: what counts is how long it was really held.)",
    |task| {
        Box::pin(async move {
            let habit = Habit { hold: HOLD, think: Duration::from_millis(5), ..Habit::BUSY };
            let crowd = alike(task, habit).await?;
            crowd.exclusive(crowd.waits(|_| true))
        })
    },
);

pub(super) const READERS: Workload = Workload {
    latency: Some("of the one that wants it alone, from the call of acquire to the grant"),
    needs: &[Need::Wait, Need::Shared],
    ..eight(
        "readers",
        "Seven clients share a lock that an eighth wants alone; each gives it back at once and asks again at once.",
        |task| Box::pin(readers(task)),
    )
};

async fn readers(task: &Task) -> Result<Sample, Failure> {
    let mut habits = vec![Habit { mode: Mode::Shared, ..Habit::BUSY }; task.size.count()];
    habits[0].mode = Mode::Exclusive;
    let crowd = crowd(task, &habits).await?;
    let mut sample = crowd.sample(crowd.waits(|contender| contender == 0))?;
    // Readers and a writer do not have the same share, and should not.
    sample.figures.remove(&Metric::Jain);
    Ok(sample)
}

pub(super) const PERMITS: Workload = Workload {
    needs: &[Need::Wait, Need::Permits],
    ..eight(
        "permits",
        "Eight clients take a semaphore with four permits, give their permit back at once and ask again at once.",
        |task| {
            Box::pin(async move {
                let crowd = alike(task, Habit { mode: Mode::Permit(4), ..Habit::BUSY }).await?;
                crowd.sample(crowd.waits(|_| true))
            })
        },
    )
};
