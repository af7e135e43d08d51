use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::crowd::{Habit, crowd};
use super::{Effort, Size, Workload};
use crate::measure::{Latencies, Sample};
use crate::subject::{Failure, Mode, Need, Subject};

const BEGIN: &str = "from begin";
const ANSWER: &str = "from answer";
const CONTENDERS: u32 = 8;
/// Long enough that all others stand in the line before it is given back.
const HOLD: Duration = Duration::from_millis(2);

pub(super) struct HandOver;

#[async_trait]
impl Workload for HandOver {
    fn id(&self) -> &'static str {
        "hand-over"
    }

    fn about(&self) -> &'static str {
        "Eight clients take one lock, hold it for 2 ms and ask again at once, so that others always wait for it: how \
         long it takes from one to the next."
    }

    fn latency(&self) -> Option<&'static str> {
        Some(
            "to the moment the next owner knows that it holds: `from begin` from the call of release, which has \
             the release's own way to the server in it; `from answer` from the return of that call, and zero when \
             the next owner knew before that",
        )
    }

    fn sizes(&self, _: &Effort) -> Vec<Size> {
        [BEGIN, ANSWER].map(|name| Size { name: name.into(), tasks: CONTENDERS, fair: true }).into()
    }

    fn needs(&self, _: &Size) -> Vec<Need> {
        vec![Need::Wait]
    }

    async fn run(&self, subject: &Arc<dyn Subject>, size: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let habit = Habit { hold: HOLD, ..Habit::busy(Mode::Exclusive, true) };
        let crowd = crowd(self.id(), subject, &vec![habit; size.count()], effort).await?;
        let mut latencies = Latencies::new()?;
        for (before, after) in crowd.trace.changes() {
            let since = if size.name == BEGIN { before.leaving } else { before.left };
            latencies.add(after.granted.saturating_duration_since(since));
        }
        Ok(crowd.exclusive(crowd.sample_of(latencies)))
    }
}
