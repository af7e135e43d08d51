//! Plots with lines: a value against another.

use std::fmt::Write as _;

use super::number::text;
use super::plot::{self, Axis, Ruler};
use super::style::Style;

/// A line and its points, with the range of the rounds where there is one.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) style: Style,
    pub(super) points: Vec<Spot>,
    /// Whether each point has a marker; otherwise a few have.
    pub(super) marked: bool,
}

/// A point of a line.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) range: Option<(f64, f64)>,
}

/// A plot of lines.
pub(super) struct Curves {
    pub(super) title: String,
    pub(super) note: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
}

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 290.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 44.0;

impl Curves {
    /// As a figure; `None` when no value has a place on the axes.
    pub(super) fn draw(mut self) -> Option<String> {
        let (x, y) = (self.x.scale, self.y.scale);
        let zero = |series: &Series| series.points.iter().any(|spot| spot.y == 0.0 && !y.has(spot.y));
        if self.series.iter().any(zero) {
            self.note.push_str(" Zeros have no place on this axis and are left out.");
        }
        for series in &mut self.series {
            series.points.retain(|spot| x.has(spot.x) && y.has(spot.y));
            for spot in &mut series.points {
                spot.range = spot.range.filter(|&(least, most)| y.has(least) && y.has(most) && least < most);
            }
        }
        self.series.retain(|series| !series.points.is_empty());
        let spots = || self.series.iter().flat_map(|series| &series.points);
        let xs = spots().map(|spot| spot.x);
        let ys = spots().flat_map(|spot| {
            let (least, most) = spot.range.unwrap_or((spot.y, spot.y));
            [least, spot.y, most]
        });
        let across = Ruler::over(self.x.clone(), xs, (LEFT, WIDTH - RIGHT))?;
        let up = Ruler::over(self.y.clone(), ys, (HEIGHT - BOTTOM, TOP))?;
        let mut svg = plot::open(WIDTH, HEIGHT, &self.told());
        frame(&mut svg, &across, &up);
        for series in &self.series {
            line(&mut svg, series, &across, &up);
        }
        svg.push_str("</svg>");
        let legend: Vec<_> =
            self.series.iter().map(|series| (series.style.swatch(), series.name.clone())).collect();
        Some(plot::figure(&self.title, &self.note, &svg, &legend, HEIGHT))
    }

    fn told(&self) -> String {
        let mut told = format!("{}: {} against {}.", self.title, self.y.title, self.x.title);
        for series in &self.series {
            let _ = write!(told, " {}:", series.name);
            let every = series.points.len().div_ceil(8).max(1);
            for spot in series.points.iter().step_by(every) {
                let _ = write!(told, " {} at {},", (self.y.written)(spot.y), (self.x.written)(spot.x));
            }
            told.pop();
            told.push('.');
        }
        told
    }
}

fn frame(svg: &mut String, across: &Ruler, up: &Ruler) {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for &tick in &up.ticks {
        let y = up.at(tick);
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/><text class=\"dim\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            up.label(tick)
        );
    }
    for &tick in &across.ticks {
        let (x, label) = (across.at(tick), across.label(tick));
        let middle = x.min(WIDTH - 1.0 - plot::half(&label));
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom}\"/>\
             <text class=\"dim\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            bottom + 16.0,
        );
    }
    let _ = writeln!(
        svg,
        "<path class=\"axis\" fill=\"none\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text transform=\"translate(12 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 8.0,
        text(&across.axis.title),
        (TOP + bottom) / 2.0,
        text(&up.axis.title)
    );
}

fn line(svg: &mut String, series: &Series, across: &Ruler, up: &Ruler) {
    let mut path = String::new();
    for (n, spot) in series.points.iter().enumerate() {
        let _ =
            write!(path, "{}{:.1} {:.1}", if n == 0 { 'M' } else { 'L' }, across.at(spot.x), up.at(spot.y));
    }
    let _ = writeln!(svg, "<path {} d=\"{path}\"/>", series.style.line());
    // Markers of a curve with many points would hide it: one at every third of the paper, the last among them.
    let mut next = if series.marked { f64::NEG_INFINITY } else { LEFT + 40.0 };
    let last = series.points.len() - 1;
    for (n, spot) in series.points.iter().enumerate() {
        let (x, y) = (across.at(spot.x), up.at(spot.y));
        if let Some((least, most)) = spot.range {
            let _ = writeln!(
                svg,
                "<path class=\"s thin\" style=\"stroke: {}\" d=\"M{x:.1} {:.1}V{:.1}\"/>",
                series.style.colour(),
                up.at(least),
                up.at(most)
            );
        }
        if series.marked || x >= next || n == last {
            next = x + 90.0;
            let _ = writeln!(
                svg,
                "<g><title>{}: {} at {}</title>{}</g>",
                text(&series.name),
                up.label(spot.y),
                across.label(spot.x),
                series.style.marker(x, y)
            );
        }
    }
}
