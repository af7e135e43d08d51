use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::crowd::{Habit, crowd};
use super::{Effort, Size, Workload};
use crate::measure::Sample;
use crate::subject::{Failure, Mode, Need, Subject};

pub(super) struct Duty;

#[async_trait]
impl Workload for Duty {
    fn id(&self) -> &'static str {
        "duty"
    }

    fn about(&self) -> &'static str {
        "Eight clients take one lock, hold it for 2 ms and stay away for 5 ms: for which share of the time it is in \
         use. (Timers are a little late: what counts is how long it was really held.)"
    }

    fn latency(&self) -> Option<&'static str> {
        Some("from the call of acquire to the grant")
    }

    fn sizes(&self, _: &Effort) -> Vec<Size> {
        Size::only(8)
    }

    fn needs(&self, _: &Size) -> Vec<Need> {
        vec![Need::Wait]
    }

    async fn run(&self, subject: &Arc<dyn Subject>, size: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let habit = Habit {
            hold: Duration::from_millis(2),
            think: Duration::from_millis(5),
            ..Habit::busy(Mode::Exclusive, true)
        };
        let crowd = crowd(self.id(), subject, &vec![habit; size.count()], effort).await?;
        Ok(crowd.exclusive(crowd.sample(|_| true)?))
    }
}
