//! Axes and frames: where a value is on paper.

use std::fmt::Write as _;

use super::number::text;

/// An axis: what it shows, and how a value is written on it.
#[derive(Clone)]
pub(super) struct Axis {
    /// With the unit.
    pub(super) title: String,
    pub(super) scale: Scale,
    pub(super) written: fn(f64) -> String,
}

/// How values lie on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// From zero.
    Linear,
    /// By powers of ten. What is not above zero has no place on it.
    Log,
    /// By powers of two.
    Doubling,
    /// Percentiles by how rare the rest is: 90, 99 and 99.9 are equally far apart.
    Nines,
}

/// The furthest percentile on paper: one in a hundred thousand.
const RAREST: f64 = 5.0;

impl Scale {
    /// A value's place, still to be stretched.
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Log => value.log10(),
            Self::Doubling => value.log2(),
            Self::Nines => (-(1.0 - value / 100.0).max(1e-9).log10()).clamp(0.0, RAREST),
        }
    }

    /// Whether the value has a place.
    pub(super) fn has(self, value: f64) -> bool {
        value.is_finite()
            && match self {
                Self::Linear => true,
                Self::Log | Self::Doubling => value > 0.0,
                Self::Nines => (0.0..=100.0).contains(&value),
            }
    }
}

/// An axis with its ends and ticks, over a stretch of paper.
pub(super) struct Ruler {
    pub(super) axis: Axis,
    ends: (f64, f64),
    paper: (f64, f64),
    pub(super) ticks: Vec<f64>,
}

impl Ruler {
    /// For the values that have a place on the axis; `None` if there is none. Paper runs from the first place to the second.
    pub(super) fn over(axis: Axis, values: impl Iterator<Item = f64>, paper: (f64, f64)) -> Option<Self> {
        let values: Vec<f64> = values.filter(|&value| axis.scale.has(value)).collect();
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        let ticks = match axis.scale {
            Scale::Linear => linear(low.min(0.0), high),
            Scale::Log => decades(low, high),
            Scale::Doubling => doublings(&values),
            Scale::Nines => nines(high),
        };
        let (first, last) = (ticks.first().copied().unwrap_or(low), ticks.last().copied().unwrap_or(high));
        let ends = match axis.scale {
            Scale::Nines => (0.0, axis.scale.place(last.max(high))),
            scale => (scale.place(first.min(low)), scale.place(last.max(high))),
        };
        Some(Self { axis, ends, paper, ticks })
    }

    /// Where a value is on paper: always on it.
    pub(super) fn at(&self, value: f64) -> f64 {
        let (low, high) = self.ends;
        let part = if high > low { (self.axis.scale.place(value) - low) / (high - low) } else { 0.5 };
        self.paper.0 + part.clamp(0.0, 1.0) * (self.paper.1 - self.paper.0)
    }

    /// A tick as it is written.
    pub(super) fn label(&self, tick: f64) -> String {
        text(&(self.axis.written)(tick))
    }
}

/// About five round steps.
fn linear(low: f64, high: f64) -> Vec<f64> {
    let span = if high > low { high - low } else { 1.0 };
    let rough = 10f64.powf((span / 5.0).log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * rough).find(|step| span / step <= 6.0).unwrap_or(span);
    let first = (low / step).floor();
    let steps = (high / step - first - 1e-9).ceil().max(1.0);
    (0..=steps as u32).map(|n| (first + f64::from(n)) * step).collect()
}

/// Powers of ten; with twos and fives between them where there is room.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let fine: &[f64] = if high / low < 150.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let every = if last - first > 8 { 2 } else { 1 };
    let all: Vec<f64> = (first..=last)
        .filter(|power| (power - first) % every == 0)
        .flat_map(|power| fine.iter().map(move |m| m * 10f64.powi(power)))
        .collect();
    // The last below the values and the first above them are the ends.
    let from = all.iter().rposition(|&tick| tick <= low * 1.000_001).unwrap_or(0);
    let to = all.iter().position(|&tick| tick >= high * 0.999_999).unwrap_or(all.len() - 1);
    if from < to { all[from..=to].to_vec() } else { vec![low / 2.0, low * 2.0] }
}

/// The values themselves, at most eight.
fn doublings(values: &[f64]) -> Vec<f64> {
    let mut ticks = values.to_vec();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let every = ticks.len().div_ceil(8);
    let last = ticks.last().copied();
    let mut ticks: Vec<f64> = ticks.into_iter().step_by(every).collect();
    ticks.extend(last.filter(|last| ticks.last() != Some(last)));
    ticks
}

/// The median, and nines as far as there are measurements.
fn nines(high: f64) -> Vec<f64> {
    [50.0, 90.0, 99.0, 99.9, 99.99, 99.999].into_iter().filter(|&tick| tick <= high.max(90.0)).collect()
}

/// Half of the width of a line of text, about.
pub(super) fn half(text: &str) -> f64 {
    text.chars().count() as f64 * 3.5
}

/// What people who do not see a plot are told instead.
pub(super) fn open(width: f64, height: f64, told: &str) -> String {
    format!("<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\">\n", text(told))
}

/// A figure: title, how to read it, the picture, the legend.
pub(super) fn figure(title: &str, note: &str, svg: &str, legend: &[(String, String)], height: f64) -> String {
    let mut items = String::new();
    for (swatch, name) in legend {
        let _ = write!(items, "<li>{swatch}{}</li>", text(name));
    }
    let note = if note.is_empty() { String::new() } else { format!("<p>{}</p>", text(note)) };
    let items = if items.is_empty() { items } else { format!("<ul class=\"legend\">{items}</ul>") };
    // A tall one stands beside several others.
    let rows = (height / 340.0).ceil().max(1.0);
    let span = if rows > 1.0 { format!(" style=\"grid-row: span {rows}\"") } else { String::new() };
    format!(
        "<figure{span}><figcaption><h3>{}</h3>{note}</figcaption>\n{svg}\n{items}</figure>\n",
        text(title)
    )
}
