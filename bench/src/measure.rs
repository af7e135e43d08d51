//! What is measured and how it is summed up.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::data::{Figure, Metric};
use crate::subject::Failure;

/// The longest latency that is told apart; longer ones count as this.
const LONGEST: u64 = 600_000_000_000;

/// Latencies, to the nanosecond and three digits.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// None yet.
    ///
    /// # Errors
    /// Never, as far as is known: the bounds are constants.
    pub fn new() -> Result<Self, Failure> {
        Ok(Self(Histogram::new_with_bounds(1, LONGEST, 3)?))
    }

    /// All of these.
    ///
    /// # Errors
    /// As [`Latencies::new`].
    pub fn of(all: impl IntoIterator<Item = Duration>) -> Result<Self, Failure> {
        let mut latencies = Self::new()?;
        all.into_iter().for_each(|latency| latencies.add(latency));
        Ok(latencies)
    }

    /// One more.
    pub fn add(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.0.saturating_record(nanos.max(1));
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The figures of a histogram with something in it.
    pub fn figures(&self, into: &mut BTreeMap<Metric, f64>) {
        if self.count() == 0 {
            return;
        }
        for (metric, quantile) in
            [(Metric::P50, 0.5), (Metric::P90, 0.9), (Metric::P99, 0.99), (Metric::Max, 1.0)]
        {
            into.insert(metric, self.0.value_at_quantile(quantile) as f64 / 1_000.0);
        }
    }
}

/// What one round of a workload on a subject gave.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Its figures, without those of the latencies.
    pub figures: BTreeMap<Metric, f64>,
    /// Its latencies.
    pub latencies: Option<Latencies>,
    /// What must be known to read them.
    pub remark: Option<String>,
}

impl Sample {
    /// A sample of these latencies.
    #[must_use]
    pub fn of(latencies: Latencies) -> Self {
        Self { latencies: Some(latencies), ..Self::default() }
    }

    /// With one more figure; what is no number is left out.
    #[must_use]
    pub fn with(mut self, metric: Metric, value: impl Into<Option<f64>>) -> Self {
        if let Some(value) = value.into().filter(|value| value.is_finite()) {
            self.figures.insert(metric, value);
        }
        self
    }

    /// With a remark, after any that is there.
    #[must_use]
    pub fn remark(mut self, text: impl Into<String>) -> Self {
        let text = text.into();
        self.remark = Some(self.remark.map_or_else(|| text.clone(), |before| format!("{before}; {text}")));
        self
    }
}

/// The median of the rounds and how far they are apart; `None` when there were none.
#[must_use]
pub fn figure(mut rounds: Vec<f64>) -> Option<Figure> {
    rounds.sort_by(f64::total_cmp);
    let (least, most) = (*rounds.first()?, *rounds.last()?);
    let middle = rounds.len() / 2;
    let upper = *rounds.get(middle)?;
    let lower = *rounds.get(rounds.len().saturating_sub(1) / 2)?;
    Some(Figure { median: f64::midpoint(lower, upper), least, most })
}

/// A stretch of time, with the processor time that this process used in it: its client's, its workload's, and, where the
/// store is in this process, the store's.
#[derive(Debug, Clone, Copy)]
pub struct Stretch {
    /// When it began.
    pub began: Instant,
    used: Duration,
}

impl Stretch {
    /// Begins now.
    #[must_use]
    pub fn begin() -> Self {
        Self { began: Instant::now(), used: processor_time() }
    }

    /// Its length so far, in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// The processor time in it so far, as a share of one core.
    #[must_use]
    pub fn share(&self) -> f64 {
        processor_time().saturating_sub(self.used).as_secs_f64() / self.seconds()
    }
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    // The kernel gives neither a negative time nor more nanoseconds than a second has.
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(figure(vec![]), None);
        assert_eq!(figure(vec![3.0]), Some(Figure { median: 3.0, least: 3.0, most: 3.0 }));
        assert_eq!(figure(vec![9.0, 1.0, 2.0]), Some(Figure { median: 2.0, least: 1.0, most: 9.0 }));
        assert_eq!(figure(vec![4.0, 1.0, 2.0, 9.0]), Some(Figure { median: 3.0, least: 1.0, most: 9.0 }));
    }

    #[test]
    fn latencies_are_told_by_percentiles() -> Result<(), Failure> {
        let (mut latencies, mut figures) = (Latencies::new()?, BTreeMap::new());
        latencies.figures(&mut figures);
        assert_eq!(figures.len(), 0);
        latencies = Latencies::of((1..=1_000).map(Duration::from_micros))?;
        latencies.figures(&mut figures);
        let close = |metric, wanted: f64| (figures[&metric] - wanted).abs() <= wanted / 500.0;
        assert!(
            close(Metric::P50, 500.0) && close(Metric::P99, 990.0) && close(Metric::Max, 1_000.0),
            "{figures:?}"
        );
        Ok(())
    }

    #[test]
    fn work_uses_the_processor() {
        let stretch = Stretch::begin();
        while processor_time() == stretch.used {
            std::hint::black_box((0..1_000).sum::<u64>());
        }
        assert!(stretch.share() > 0.0 && stretch.seconds() > 0.0);
    }
}
