//! Random verbs on SQLite and on the executable specification give the same answers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_conformance::differential::{Numbers, Subject, Times, play};
use onelock_conformance::rng::Rng;
use onelock_conformance::verdict::Verdict;
use onelock_core::Backend;

use crate::support::{HandClock, file, folder, open_with};

/// A file, and its clock, which stands still until it is moved: times are compared to the nanosecond.
struct Clocked {
    clients: Vec<Arc<dyn Backend>>,
    clock: Arc<HandClock>,
}

fn millis(rng: &mut Rng, step: u64, end: u64) -> Duration {
    Duration::from_millis(step * rng.below(end))
}

#[async_trait]
impl Subject for Clocked {
    fn clients(&self) -> &[Arc<dyn Backend>] {
        &self.clients
    }

    fn numbers(&self) -> Numbers {
        Numbers::OneByOne
    }

    fn times(&self, rng: &mut Rng) -> Times {
        let least = Duration::from_millis(100);
        Times {
            lease: least + millis(rng, 100, 20),
            waiter_lease: least + millis(rng, 100, 10),
            delay: millis(rng, 50, 3),
        }
    }

    fn pause(&self, rng: &mut Rng) -> Duration {
        millis(rng, 20, 20)
    }

    async fn advance(&self, time: Duration) -> Verdict {
        self.clock.advance(time);
        Ok(())
    }
}

#[tokio::test]
async fn random_verbs_give_the_same_answers() -> Verdict {
    for seed in 1..=8 {
        let (folder, clock) = (folder(), HandClock::new());
        let mut clients: Vec<Arc<dyn Backend>> = Vec::new();
        for _ in 0..2 {
            clients.push(Arc::new(open_with(&file(&folder), &clock).await));
        }
        play(&Clocked { clients, clock }, seed, 500).await?;
    }
    Ok(())
}
