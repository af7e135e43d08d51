//! Plots with a row for each subject.

use std::fmt::Write as _;

use super::number::text;
use super::plot::{self, Axis, Ruler};
use super::style::Style;

/// A row: one subject's value, with its name above.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) style: Style,
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

/// Rows that belong together.
pub(super) struct Group {
    pub(super) name: String,
    pub(super) rows: Vec<Row>,
}

/// A plot of rows.
pub(super) struct Dots {
    pub(super) title: String,
    pub(super) note: String,
    pub(super) x: Axis,
    pub(super) groups: Vec<Group>,
    /// Lines across all rows, with their names.
    pub(super) lines: Vec<(f64, String)>,
    /// Whether a bar goes from the axis to the marker.
    pub(super) bars: bool,
    pub(super) legend: Vec<(Style, String)>,
}

const WIDTH: f64 = 420.0;
const LEFT: f64 = 8.0;
const RIGHT: f64 = 14.0;
const ROW: f64 = 31.0;
const HEAD: f64 = 22.0;

impl Dots {
    /// As a figure; `None` when no value has a place on the axis.
    pub(super) fn draw(mut self) -> Option<String> {
        let scale = self.x.scale;
        for group in &mut self.groups {
            group.rows.retain(|row| scale.has(row.value));
            for row in &mut group.rows {
                row.range = row.range.filter(|&(low, high)| scale.has(low) && scale.has(high) && low < high);
                row.ticks.retain(|&tick| scale.has(tick));
            }
        }
        self.groups.retain(|group| !group.rows.is_empty());
        let values = self.groups.iter().flat_map(|group| &group.rows).flat_map(|row| {
            let (low, high) = row.range.unwrap_or((row.value, row.value));
            [row.value, low, high].into_iter().chain(row.ticks.iter().copied())
        });
        let lines = self.lines.iter().map(|(at, _)| *at);
        let some = self.groups.iter().any(|group| !group.rows.is_empty());
        let across =
            Ruler::over(self.x.clone(), values.chain(lines).filter(|_| some), (LEFT, WIDTH - RIGHT))?;
        let head = |group: &Group| if group.name.is_empty() { 0.0 } else { HEAD };
        let top = if self.lines.is_empty() { 4.0 } else { 20.0 };
        let bottom = self.groups.iter().map(|group| head(group) + ROW * group.rows.len() as f64).sum::<f64>()
            + top
            + 4.0;
        let mut svg = plot::open(WIDTH, bottom + 40.0, &self.told());
        self.frame(&mut svg, &across, top, bottom);
        let mut y = top;
        for group in &self.groups {
            if !group.name.is_empty() {
                let _ = writeln!(
                    svg,
                    "<text class=\"b\" x=\"{LEFT}\" y=\"{:.1}\">{}</text>",
                    y + 16.0,
                    text(&group.name)
                );
                y += HEAD;
            }
            for row in &group.rows {
                self.row(&mut svg, &across, row, y);
                y += ROW;
            }
        }
        svg.push_str("</svg>");
        let drawn = |style| self.groups.iter().any(|group| group.rows.iter().any(|row| row.style == style));
        let legend: Vec<_> = self
            .legend
            .iter()
            .filter(|(style, _)| drawn(*style))
            .map(|(style, name)| (style.swatch(), name.clone()))
            .collect();
        Some(plot::figure(&self.title, &self.note, &svg, &legend, bottom))
    }

    fn told(&self) -> String {
        let mut told = format!("{}: {}.", self.title, self.x.title);
        for group in &self.groups {
            for row in &group.rows {
                let name = [group.name.as_str(), &row.name].join(" ");
                let _ = write!(told, " {}: {};", name.trim(), row.told);
            }
        }
        told
    }

    fn frame(&self, svg: &mut String, across: &Ruler, top: f64, bottom: f64) {
        let mut free = f64::NEG_INFINITY;
        for &tick in &across.ticks {
            let x = across.at(tick);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{x:.1} {top}V{bottom:.1}\"/>");
            let label = across.label(tick);
            // Labels at the ends stay on the paper, and none touches the one before.
            let half = plot::half(&label);
            let middle = x.clamp(half + 1.0, WIDTH - half - 1.0);
            if middle - half > free {
                free = middle + half + 4.0;
                let _ = writeln!(
                    svg,
                    "<text class=\"dim\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                    bottom + 15.0
                );
            }
        }
        let mut free = f64::NEG_INFINITY;
        for (at, name) in &self.lines {
            let x = across.at(*at);
            let half = plot::half(name);
            let middle = x.clamp(half + 1.0, WIDTH - half - 1.0).max(free + half);
            free = middle + half + 6.0;
            let _ = writeln!(
                svg,
                "<path class=\"ref\" d=\"M{x:.1} {top}V{bottom:.1}\"/>\
                 <text x=\"{middle:.1}\" y=\"13\" text-anchor=\"middle\">{}</text>",
                text(name)
            );
        }
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{LEFT} {bottom:.1}H{:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            WIDTH - RIGHT,
            (LEFT + WIDTH - RIGHT) / 2.0,
            bottom + 33.0,
            text(&across.axis.title)
        );
    }

    fn row(&self, svg: &mut String, across: &Ruler, row: &Row, top: f64) {
        let (x, y) = (across.at(row.value), top + 21.0);
        let colour = row.style.colour();
        if !self.lines.is_empty() {
            // No line goes through what is written.
            for (from, words) in [(LEFT, row.name.as_str()), (WIDTH - RIGHT, &row.told)] {
                let width = 2.0 * plot::half(words) + 4.0;
                let x = if from > LEFT { from - width } else { from };
                let _ = writeln!(
                    svg,
                    "<rect class=\"bg\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"15\"/>"
                );
            }
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\">{}</text><text class=\"{}\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT + 4.0,
            top + 11.0,
            text(&clip(&row.name, row.told.chars().count())),
            if row.bad { "bad" } else { "dim" },
            WIDTH - RIGHT,
            top + 11.0,
            text(&row.told)
        );
        if self.bars {
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"7\" opacity=\".55\" style=\"fill: {colour}\"/>",
                y - 3.5,
                x - LEFT
            );
        }
        if let Some((low, high)) = row.range {
            let _ = writeln!(
                svg,
                "<path class=\"s thin\" style=\"stroke: {colour}\" d=\"M{:.1} {y:.1}H{:.1}\"/>",
                across.at(low),
                across.at(high)
            );
        }
        for &tick in &row.ticks {
            let _ = writeln!(
                svg,
                "<path class=\"s\" style=\"stroke: {colour}\" d=\"M{:.1} {:.1}v8\"/>",
                across.at(tick),
                y - 4.0
            );
        }
        let _ = writeln!(
            svg,
            "<g><title>{}: {}</title>{}</g>",
            text(&row.name),
            text(&row.told),
            row.style.marker(x, y)
        );
    }
}

/// A name with room for what is told beside it.
fn clip(name: &str, beside: usize) -> String {
    let room = 60usize.saturating_sub(beside).max(8);
    if name.chars().count() <= room {
        return name.into();
    }
    let mut short: String = name.chars().take(room - 1).collect();
    short.push('…');
    short
}
