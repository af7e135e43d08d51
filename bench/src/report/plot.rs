//! Where values lie on paper. The template draws what is computed here.

use std::fmt::Write as _;

use serde::Serialize;

use super::number;
use crate::data::Kind;

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
}

impl Scale {
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Log => value.log10(),
            Self::Doubling => value.log2(),
        }
    }

    fn has(self, value: f64) -> bool {
        value.is_finite() && (self == Self::Linear || value > 0.0)
    }
}

/// An axis with its ends and ticks, over a stretch of paper.
struct Ruler {
    axis: Axis,
    ends: (f64, f64),
    paper: (f64, f64),
    ticks: Vec<f64>,
}

impl Ruler {
    /// For the values that have a place on the axis; `None` if there is none. Paper runs from the first place to the second.
    fn over(axis: Axis, values: impl Iterator<Item = f64>, paper: (f64, f64)) -> Option<Self> {
        let values: Vec<f64> = values.filter(|&value| axis.scale.has(value)).collect();
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        let ticks = match axis.scale {
            Scale::Linear => linear(low.min(0.0), high),
            Scale::Log => decades(low, high),
            Scale::Doubling => {
                let mut ticks = values;
                ticks.sort_by(f64::total_cmp);
                ticks.dedup();
                ticks
            }
        };
        let (first, last) = (ticks.first().copied().unwrap_or(low), ticks.last().copied().unwrap_or(high));
        let ends = (axis.scale.place(first.min(low)), axis.scale.place(last.max(high)));
        Some(Self { axis, ends, paper, ticks })
    }

    /// Where a value is on paper: always on it.
    fn at(&self, value: f64) -> f64 {
        let (low, high) = self.ends;
        let part = if high > low { (self.axis.scale.place(value) - low) / (high - low) } else { 0.5 };
        let at = self.paper.0 + part.clamp(0.0, 1.0) * (self.paper.1 - self.paper.0);
        (at * 10.0).round() / 10.0
    }

    fn ticks(&self) -> Vec<Mark> {
        self.ticks.iter().map(|&tick| Mark { at: self.at(tick), text: (self.axis.written)(tick) }).collect()
    }

    /// Ticks whose labels neither touch each other nor leave the paper.
    fn spaced(&self, width: f64) -> Vec<Mark> {
        let mut free = f64::NEG_INFINITY;
        let mut ticks = self.ticks();
        for tick in &mut ticks {
            let half = half(&tick.text);
            // The template moves the first one to the right, so that none of it is cut off.
            let middle = tick.at.max(half);
            if middle - half < free || middle + half > width {
                tick.text.clear();
            } else {
                free = middle + half + 4.0;
            }
        }
        ticks
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

/// Half of the width of a line of text, about.
fn half(text: &str) -> f64 {
    text.chars().count() as f64 * 3.5
}

/// A place on an axis, with a label.
#[derive(Serialize)]
pub(super) struct Mark {
    at: f64,
    text: String,
}

/// A plot, as the template draws it.
#[derive(Serialize)]
pub(super) struct Plot {
    title: String,
    note: String,
    /// The figures in words, for people who do not see the plot.
    told: String,
    x: String,
    y: String,
    bottom: f64,
    across: Vec<Mark>,
    up: Vec<Mark>,
    lines: Vec<Mark>,
    heads: Vec<Mark>,
    rows: Vec<DrawnRow>,
    series: Vec<DrawnSeries>,
}

/// A row of a plot: one subject's value.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Where the marker is.
    pub(super) value: f64,
    /// A thin line beside the marker: the range of the rounds, or from the best to the worst.
    pub(super) range: Option<(f64, f64)>,
    /// Small ticks on that line.
    pub(super) ticks: Vec<f64>,
    /// What is written at the right.
    pub(super) told: String,
    /// Whether that tells something bad.
    pub(super) bad: bool,
}

#[derive(Serialize)]
struct DrawnRow {
    name: String,
    kind: Kind,
    told: String,
    bad: bool,
    y: f64,
    x: f64,
    /// Where its bar begins, if it has one.
    bar: Option<f64>,
    range: Option<(f64, f64)>,
    ticks: Vec<f64>,
}

const WIDTH: f64 = 420.0;
const LEFT: f64 = 8.0;
const RIGHT: f64 = 406.0;
const ROW: f64 = 31.0;
const HEAD: f64 = 22.0;

/// Rows, in groups with a name each. `line` goes across all of them, with its name; with `bars` the values begin at the axis.
pub(super) struct Rows {
    pub(super) title: String,
    pub(super) note: String,
    pub(super) x: Axis,
    pub(super) groups: Vec<(String, Vec<Row>)>,
    pub(super) line: Option<(f64, String)>,
    pub(super) bars: bool,
}

impl Rows {
    /// As a plot; `None` when no value has a place on the axis.
    pub(super) fn draw(mut self) -> Option<Plot> {
        let scale = self.x.scale;
        for (_, rows) in &mut self.groups {
            rows.retain(|row| scale.has(row.value));
            for row in rows {
                row.range = row.range.filter(|&(low, high)| scale.has(low) && scale.has(high) && low < high);
                row.ticks.retain(|&tick| scale.has(tick));
            }
        }
        self.groups.retain(|(_, rows)| !rows.is_empty());
        if self.groups.is_empty() {
            return None;
        }
        let values = self.groups.iter().flat_map(|(_, rows)| rows).flat_map(|row| {
            let (low, high) = row.range.unwrap_or((row.value, row.value));
            [row.value, low, high].into_iter().chain(row.ticks.iter().copied())
        });
        let line = self.line.iter().map(|(at, _)| *at);
        let across = Ruler::over(self.x.clone(), values.chain(line), (LEFT, RIGHT))?;
        let mut told = format!("{}: {}.", self.title, self.x.title);
        let (mut heads, mut rows) = (Vec::new(), Vec::new());
        let mut y = if self.line.is_some() { 20.0 } else { 4.0 };
        for (group, members) in self.groups {
            if !group.is_empty() {
                heads.push(Mark { at: y + 16.0, text: group.clone() });
                y += HEAD;
            }
            for row in members {
                // Writing to a string does not fail.
                let _ = write!(told, " {}: {};", format!("{group} {}", row.name).trim(), row.told);
                rows.push(DrawnRow {
                    name: clip(&row.name, row.told.chars().count()),
                    kind: row.kind,
                    told: row.told,
                    bad: row.bad,
                    y,
                    x: across.at(row.value),
                    bar: self.bars.then_some(LEFT),
                    range: row.range.map(|(low, high)| (across.at(low), across.at(high))),
                    ticks: row.ticks.iter().map(|&tick| across.at(tick)).collect(),
                });
                y += ROW;
            }
        }
        let line = self.line.into_iter().map(|(at, text)| Mark { at: across.at(at), text });
        Some(Plot {
            title: self.title,
            note: self.note,
            told,
            x: self.x.title,
            y: String::new(),
            bottom: y + 4.0,
            across: across.spaced(WIDTH),
            up: Vec::new(),
            lines: line.collect(),
            heads,
            rows,
            series: Vec::new(),
        })
    }
}

/// A name with room for what is told beside it.
fn clip(name: &str, beside: usize) -> String {
    let room = 60usize.saturating_sub(beside).max(8);
    if name.chars().count() <= room {
        return name.into();
    }
    name.chars().take(room - 1).chain(['…']).collect()
}

/// A line: its points rise, each with the range of the rounds.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) points: Vec<(f64, f64, (f64, f64))>,
}

#[derive(Serialize)]
struct DrawnSeries {
    name: String,
    kind: Kind,
    points: Vec<Point>,
}

#[derive(Serialize)]
struct Point {
    x: f64,
    y: f64,
    range: Option<(f64, f64)>,
    told: String,
}

/// Lines: a value against another.
pub(super) struct Lines {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
}

impl Lines {
    /// As a plot; `None` when no value has a place on the axes.
    pub(super) fn draw(mut self) -> Option<Plot> {
        let (x, y) = (self.x.scale, self.y.scale);
        let spots = || self.series.iter().flat_map(|series| &series.points);
        let zeros = spots().any(|&(_, value, _)| value == 0.0 && !y.has(value));
        let note = if zeros { "Zeros have no place on this axis and are left out." } else { "" };
        for series in &mut self.series {
            series.points.retain(|&(at, value, _)| x.has(at) && y.has(value));
        }
        self.series.retain(|series| !series.points.is_empty());
        let spots = || self.series.iter().flat_map(|series| &series.points);
        let across = Ruler::over(self.x.clone(), spots().map(|spot| spot.0), (62.0, WIDTH - 12.0))?;
        let values = spots().flat_map(|&(_, value, (least, most))| [least, value, most]);
        let up = Ruler::over(self.y.clone(), values, (246.0, 10.0))?;
        let mut told = format!("{}: {} against {}.", self.title, self.y.title, self.x.title);
        let mut drawn = Vec::new();
        for Series { name, kind, points } in self.series {
            let _ = write!(told, " {name}:");
            let points = points.iter().map(|&(at, value, (least, most))| {
                let text = format!("{} at {}", (self.y.written)(value), number::plain(at));
                let _ = write!(told, " {text};");
                let range =
                    (y.has(least) && y.has(most) && least < most).then(|| (up.at(least), up.at(most)));
                Point { x: across.at(at), y: up.at(value), range, told: text }
            });
            drawn.push(DrawnSeries { name, kind, points: points.collect() });
        }
        Some(Plot {
            title: self.title,
            note: note.into(),
            told,
            x: self.x.title,
            y: self.y.title,
            bottom: 246.0,
            across: across.ticks(),
            up: up.ticks(),
            lines: Vec::new(),
            heads: Vec::new(),
            rows: Vec::new(),
            series: drawn,
        })
    }
}
