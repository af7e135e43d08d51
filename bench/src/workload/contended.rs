use std::sync::Arc;

use async_trait::async_trait;

use super::crowd::{Habit, crowd};
use super::{Effort, Size, Workload};
use crate::measure::Sample;
use crate::subject::{Failure, Mode, Need, Subject};

pub(super) struct Contended;

#[async_trait]
impl Workload for Contended {
    fn id(&self) -> &'static str {
        "contended"
    }

    fn about(&self) -> &'static str {
        "Clients take one lock, give it back at once, and ask again at once: in the order of asking, or unfair."
    }

    fn latency(&self) -> Option<&'static str> {
        Some("from the call of acquire to the grant")
    }

    fn sizes(&self, effort: &Effort) -> Vec<Size> {
        let most = if effort.small { 8 } else { 64 };
        let crowds: Vec<u32> = [2, 8, 64].into_iter().filter(|tasks| *tasks <= most).collect();
        let unfair = |tasks: &u32| Size { name: format!("{tasks} unfair"), tasks: *tasks, fair: false };
        crowds.iter().copied().map(Size::of).chain(crowds.iter().map(unfair)).collect()
    }

    fn needs(&self, size: &Size) -> Vec<Need> {
        if size.fair { vec![Need::Wait] } else { vec![Need::Wait, Need::Unfair] }
    }

    async fn run(&self, subject: &Arc<dyn Subject>, size: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let habits = vec![Habit::busy(Mode::Exclusive, size.fair); size.count()];
        let crowd = crowd(self.id(), subject, &habits, effort).await?;
        Ok(crowd.exclusive(crowd.sample(|_| true)?))
    }
}
