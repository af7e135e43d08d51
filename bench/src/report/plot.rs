//! Where values lie on paper. The template draws what is computed here.

use std::fmt::Write as _;

use serde::Serialize;

use super::number;
use crate::data::Kind;

/// A stretch of paper, and the values at its ends.
struct Ruler {
    /// By powers of ten; what is not above zero has no place on it. Else evenly.
    log: bool,
    ends: (f64, f64),
    paper: (f64, f64),
}

impl Ruler {
    /// From the least of the values to the largest; `None` if there is none.
    fn over(log: bool, values: &[f64], paper: (f64, f64)) -> Option<Self> {
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        Some(Self { log, ends: (low, high), paper })
    }

    /// Where a value is on paper: always on it.
    fn at(&self, value: f64) -> f64 {
        let [low, high, value] =
            [self.ends.0, self.ends.1, value].map(|v| if self.log { v.log10() } else { v });
        let part = if high > low { (value - low) / (high - low) } else { 0.5 };
        let at = self.paper.0 + part.clamp(0.0, 1.0) * (self.paper.1 - self.paper.0);
        (at * 10.0).round() / 10.0
    }

    fn ticks(&self, ticks: &[f64], written: fn(f64) -> String) -> Vec<Tick> {
        ticks.iter().map(|&tick| Tick { at: self.at(tick), text: written(tick) }).collect()
    }
}

/// Whether a value has a place on an axis.
fn has_place(log: bool, value: f64) -> bool {
    value.is_finite() && (!log || value > 0.0)
}

/// Powers of ten around the values; with twos and fives between them where there is room.
fn decades(values: &[f64]) -> Vec<f64> {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
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

/// A place on paper, with what is written there.
#[derive(Serialize)]
pub(super) struct Tick {
    at: f64,
    text: String,
}

/// A plot, as the template draws it: of rows, or of lines.
#[derive(Default, Serialize)]
pub(super) struct Plot {
    title: String,
    note: String,
    /// The figures in words, for people who do not see the plot.
    told: String,
    x: String,
    y: String,
    bottom: f64,
    bars: bool,
    across: Vec<Tick>,
    up: Vec<Tick>,
    heads: Vec<Tick>,
    rows: Vec<DrawnRow>,
    series: Vec<DrawnSeries>,
}

/// One subject's value, by a row of a plot.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Where the marker is.
    pub(super) value: f64,
    /// A thin line through the marker.
    pub(super) range: (f64, f64),
    /// Small ticks on that line.
    pub(super) ticks: Vec<f64>,
    /// What is written at the right.
    pub(super) told: String,
}

#[derive(Serialize)]
struct DrawnRow {
    name: String,
    kind: Kind,
    told: String,
    y: f64,
    x: f64,
    range: Option<(f64, f64)>,
    ticks: Vec<f64>,
}

/// Of the paper: its width, its margin on both sides, and the heights of a row and of a group's name.
const WIDTH: f64 = 420.0;
const MARGIN: f64 = 10.0;
const ROW: f64 = 31.0;
const HEAD: f64 = 22.0;

/// Rows in groups with a name each: as bars from zero, or as markers on a logarithmic axis.
pub(super) struct Rows {
    pub(super) title: String,
    pub(super) note: String,
    pub(super) x: String,
    pub(super) written: fn(f64) -> String,
    pub(super) groups: Vec<(String, Vec<Row>)>,
    pub(super) bars: bool,
}

impl Rows {
    /// As a plot; `None` when no value has a place on the axis.
    pub(super) fn draw(mut self) -> Option<Plot> {
        let log = !self.bars;
        for (_, rows) in &mut self.groups {
            rows.retain(|row| has_place(log, row.value));
            rows.iter_mut().for_each(|row| row.ticks.retain(|&tick| has_place(log, tick)));
        }
        self.groups.retain(|(_, rows)| !rows.is_empty());
        let rows = self.groups.iter().flat_map(|(_, rows)| rows);
        let values = rows.flat_map(|row| [row.value, row.range.0, row.range.1]);
        let mut values: Vec<f64> = values.filter(|&value| has_place(log, value)).collect();
        if values.is_empty() {
            return None;
        }
        // Each bar has its value beside it, and needs no axis to be read.
        let ticks = if self.bars { vec![0.0] } else { decades(&values) };
        values.extend(&ticks);
        // Bars of zero alone end where they begin.
        values.extend(self.bars.then_some(f64::MIN_POSITIVE));
        let across = Ruler::over(log, &values, (MARGIN, WIDTH - MARGIN))?;
        let mut plot = Plot { bottom: 8.0, bars: self.bars, ..Plot::default() };
        plot.across = across.ticks(&ticks, self.written);
        plot.told = format!("{}: {}.", self.title, self.x);
        for (group, members) in self.groups {
            plot.bottom += HEAD;
            plot.heads.push(Tick { at: plot.bottom - 6.0, text: group.clone() });
            for row in members {
                // Writing to a string does not fail.
                let _ = write!(plot.told, " {group} {}: {};", row.name, row.told);
                let (low, high) = row.range;
                let has_range = has_place(log, low) && has_place(log, high) && low < high;
                plot.rows.push(DrawnRow {
                    name: clip(&row.name, row.told.chars().count()),
                    kind: row.kind,
                    told: row.told,
                    y: plot.bottom,
                    x: across.at(row.value),
                    range: has_range.then(|| (across.at(low), across.at(high))),
                    ticks: row.ticks.iter().map(|&tick| across.at(tick)).collect(),
                });
                plot.bottom += ROW;
            }
        }
        Some(Plot { title: self.title, note: self.note, x: self.x, ..plot })
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
    points: Vec<PlotPoint>,
}

#[derive(Serialize)]
struct PlotPoint {
    x: f64,
    y: f64,
    range: Option<(f64, f64)>,
    told: String,
}

/// Lines: a value against another, both on logarithmic axes.
pub(super) struct Lines {
    pub(super) title: String,
    pub(super) x: String,
    pub(super) y: String,
    pub(super) series: Vec<Series>,
}

/// Where the axes of lines end.
const LEFT: f64 = 62.0;
const BOTTOM: f64 = 246.0;

impl Lines {
    /// As a plot; `None` when no value has a place on the axes.
    pub(super) fn draw(mut self) -> Option<Plot> {
        let all = || self.series.iter().flat_map(|series| &series.points);
        let zeros = all().any(|&(_, value, _)| value == 0.0);
        for series in &mut self.series {
            series.points.retain(|&(at, value, _)| has_place(true, at) && has_place(true, value));
        }
        self.series.retain(|series| !series.points.is_empty());
        let all = || self.series.iter().flat_map(|series| &series.points);
        let mut tasks: Vec<f64> = all().map(|point| point.0).collect();
        tasks.sort_by(f64::total_cmp);
        tasks.dedup();
        let values = all().flat_map(|&(_, value, (least, most))| [least, value, most]);
        let mut values: Vec<f64> = values.filter(|&value| has_place(true, value)).collect();
        let across = Ruler::over(true, &tasks, (LEFT, WIDTH - 12.0))?;
        let ticks = decades(&values);
        values.extend(&ticks);
        let up = Ruler::over(true, &values, (BOTTOM, 10.0))?;
        let mut told = format!("{}: {} against {}.", self.title, self.y, self.x);
        let mut drawn = Vec::new();
        for Series { name, kind, points } in self.series {
            // Writing to a string does not fail.
            let _ = write!(told, " {name}:");
            let points = points.iter().map(|&(at, value, (least, most))| {
                let text = format!("{} at {}", number::short(value), number::plain(at));
                let _ = write!(told, " {text};");
                let has_range = has_place(true, least) && least < most;
                let range = has_range.then(|| (up.at(least), up.at(most)));
                PlotPoint { x: across.at(at), y: up.at(value), range, told: text }
            });
            drawn.push(DrawnSeries { name, kind, points: points.collect() });
        }
        let note = if zeros { "Zeros have no place on this axis and are left out." } else { "" };
        Some(Plot {
            title: self.title,
            note: note.into(),
            told,
            x: self.x,
            y: self.y,
            bottom: BOTTOM,
            across: across.ticks(&tasks, number::plain),
            up: up.ticks(&ticks, number::short),
            series: drawn,
            ..Plot::default()
        })
    }
}
