use std::sync::Arc;

use async_trait::async_trait;

use super::crowd::{Habit, crowd};
use super::{Effort, Size, Workload};
use crate::data::Metric;
use crate::measure::Sample;
use crate::subject::{Failure, Mode, Need, Subject};

pub(super) struct Readers;

#[async_trait]
impl Workload for Readers {
    fn id(&self) -> &'static str {
        "readers"
    }

    fn about(&self) -> &'static str {
        "Seven clients share a lock that an eighth wants alone; each gives it back at once and asks again at once."
    }

    fn latency(&self) -> Option<&'static str> {
        Some("of the one that wants it alone, from the call of acquire to the grant")
    }

    fn sizes(&self, _: &Effort) -> Vec<Size> {
        Size::only(8)
    }

    fn needs(&self, _: &Size) -> Vec<Need> {
        vec![Need::Wait, Need::Shared]
    }

    async fn run(&self, subject: &Arc<dyn Subject>, size: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let mut habits = vec![Habit::busy(Mode::Shared, true); size.count()];
        if let Some(writer) = habits.first_mut() {
            writer.mode = Mode::Exclusive;
        }
        let crowd = crowd(self.id(), subject, &habits, effort).await?;
        let mut sample = crowd.sample(|contender| contender == 0)?;
        // Readers and a writer do not have the same share, and should not.
        sample.figures.remove(&Metric::Jain);
        Ok(sample)
    }
}
