use std::sync::Arc;

use async_trait::async_trait;

use super::crowd::{Habit, crowd};
use super::{Effort, Size, Workload};
use crate::measure::Sample;
use crate::subject::{Failure, Mode, Need, Subject};

const PERMITS: u32 = 4;

pub(super) struct Permits;

#[async_trait]
impl Workload for Permits {
    fn id(&self) -> &'static str {
        "permits"
    }

    fn about(&self) -> &'static str {
        "Eight clients take a semaphore with four permits, give their permit back at once and ask again at once."
    }

    fn latency(&self) -> Option<&'static str> {
        Some("from the call of acquire to the grant")
    }

    fn sizes(&self, _: &Effort) -> Vec<Size> {
        Size::only(8)
    }

    fn needs(&self, _: &Size) -> Vec<Need> {
        vec![Need::Wait, Need::Permits]
    }

    async fn run(&self, subject: &Arc<dyn Subject>, size: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let habits = vec![Habit::busy(Mode::Permit(PERMITS), true); size.count()];
        crowd(self.id(), subject, &habits, effort).await?.sample(|_| true)
    }
}
