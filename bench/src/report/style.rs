//! Colours and markers. A series is told by both, so that neither colour vision nor a printer is needed.

use std::fmt::Write as _;

use crate::data::Kind;

/// The look of the page, in light and in dark. The first eight colours are told apart by all kinds of colour vision.
pub(super) const CSS: &str = "
:root { color-scheme: light dark; --bg: #fff; --fg: #1c2733; --dim: #5a6673; --line: #d7dee6; --soft: #f4f6f8; --good: #17692f; --bad: #b3261e;
--c0: #0072b2; --c1: #c44e00; --c2: #00805d; --c3: #a8478a; --c4: #946200; --c5: #2b8fca; --c6: #5f4bb6; --c7: #4d5761 }
@media (prefers-color-scheme: dark) { :root { --bg: #14191f; --fg: #d9e1e8; --dim: #98a5b2; --line: #34404c; --soft: #1e262e; --good: #6fce8b; --bad: #ff8f85;
--c0: #56b4e9; --c1: #ff8f45; --c2: #3fcf9f; --c3: #e892c7; --c4: #f0c43f; --c5: #a8d4ff; --c6: #b7a6ff; --c7: #aeb8c2 } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: var(--fg); background: var(--bg) }
h1 { line-height: 1.2 } h2 { margin: 2.5rem 0 .3rem; line-height: 1.25 } h3 { font-size: 1rem; margin: 0 } a { color: var(--c0) }
p, li { max-width: 52rem } .dim, figcaption p { color: var(--dim); margin: .2rem 0 } figcaption p { font-size: 13px }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1rem; margin: 1rem 0 }
.wide { overflow-x: auto; margin: 1rem 0 } table { border-collapse: collapse; min-width: 100% }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top }
th { font-size: 13px; line-height: 1.3; vertical-align: bottom } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums } td.n { white-space: pre }
td:last-child:not(.n):not(:first-child) { min-width: 12rem }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--bg) }
.good { color: var(--good) } .bad { color: var(--bad); font-weight: 600 } .quiet { color: var(--dim) }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: 1.2rem 1.6rem; margin: 1rem 0; align-items: start }
figure { margin: 0; break-inside: avoid; min-width: 0 } figure svg { display: block; width: 100%; height: auto; max-width: 36rem }
.legend { display: flex; flex-wrap: wrap; gap: .1rem .9rem; list-style: none; margin: .2rem 0 0; padding: 0; font-size: 13px }
.legend svg { width: 34px; height: 14px; display: inline-block; vertical-align: -2px; margin-right: .25rem } summary { cursor: pointer; font-weight: 600 }
svg text { fill: var(--fg); font: 12px system-ui, sans-serif; paint-order: stroke; stroke: var(--bg); stroke-width: 3px; stroke-linejoin: round } svg text.dim { fill: var(--dim) } svg text.b { font-weight: 600 } svg text.bad { fill: var(--bad) }
svg .grid { stroke: var(--line); stroke-width: 1 } svg .axis { stroke: var(--dim); stroke-width: 1 } svg .ref { stroke: var(--bad); stroke-width: 1.4; stroke-dasharray: 5 3 }
svg .s { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round } svg .thin { stroke-width: 1.2 } svg .dash { stroke-dasharray: 6 4 } svg .dots { stroke-dasharray: 1.5 4 }
svg .f { stroke: var(--bg); stroke-width: .8 } svg .bg { fill: var(--bg) }
pre { background: var(--soft); padding: .6rem; overflow-x: auto }
@media (max-width: 600px) { figure { grid-row: auto !important } body { margin-top: 1rem } th, td { padding: .25rem .4rem } th:first-child, td:first-child { max-width: 10rem; overflow-wrap: break-word }
.words thead { display: none } .words, .words tbody, .words tr, .words td { display: block } .words tr { border-bottom: 1px solid var(--line); padding: .3rem 0 }
.words td, .words td:first-child { border: 0; padding: 0; max-width: none; position: static } .words td:first-child { font-weight: 600 } }
@media print { body { max-width: none; margin: 0; font-size: 11px } nav { display: none } .wide { overflow: visible } details::details-content { content-visibility: visible; display: block; height: auto }
.plots { display: block; columns: 2; column-gap: 1.2rem } figure { margin-bottom: 1rem } figure svg { max-height: 22cm } h2, h2 + p { break-after: avoid } th:first-child, td:first-child { position: static } }
";

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Style {
    colour: usize,
    marker: usize,
    dash: usize,
}

impl Style {
    /// Of the store at `index` of the run.
    pub(super) fn store(index: usize) -> Self {
        // Seven and eight share no divisor: 56 stores until a pair comes again.
        Self { colour: index % 8, marker: index % 7, dash: index / 8 % 3 }
    }

    /// Of a part of a store: ours, the driver alone, or the other at `index`.
    pub(super) fn part(kind: Kind, index: usize) -> Self {
        match kind {
            Kind::Ours => Self { colour: 0, marker: 0, dash: 0 },
            Kind::Floor => Self { colour: 7, marker: 1, dash: 1 },
            Kind::Peer => {
                Self { colour: [1, 2, 3, 4, 6][index % 5], marker: 2 + index % 5, dash: index / 5 % 3 }
            }
        }
    }

    /// The same, for a second line of the same series.
    pub(super) fn broken(self) -> Self {
        Self { dash: 2, ..self }
    }

    /// Attributes of its line.
    pub(super) fn line(self) -> String {
        let dash = ["", " dash", " dots"][self.dash];
        format!("class=\"s{dash}\" style=\"stroke: var(--c{})\"", self.colour)
    }

    /// Its colour.
    pub(super) fn colour(self) -> String {
        format!("var(--c{})", self.colour)
    }

    /// Its marker around a point.
    pub(super) fn marker(self, x: f64, y: f64) -> String {
        let class = format!("class=\"f\" style=\"fill: var(--c{})\"", self.colour);
        let corners: &[(f64, f64)] = match self.marker {
            0 => return format!("<circle {class} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.2\"/>"),
            1 => &[(-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)],
            2 => &[(0.0, -4.8), (4.6, 3.6), (-4.6, 3.6)],
            3 => &[(0.0, -5.2), (5.2, 0.0), (0.0, 5.2), (-5.2, 0.0)],
            4 => &[(0.0, 4.8), (4.6, -3.6), (-4.6, -3.6)],
            5 => &CROSS,
            _ => &STAR,
        };
        let mut points = String::new();
        for (dx, dy) in corners {
            // Writing to a string does not fail.
            let _ = write!(points, "{:.1},{:.1} ", x + dx, y + dy);
        }
        format!("<polygon {class} points=\"{}\"/>", points.trim_end())
    }

    /// A piece of its line with its marker, for a legend.
    pub(super) fn swatch(self) -> String {
        format!(
            "<svg viewBox=\"0 0 34 14\" aria-hidden=\"true\"><path {} d=\"M2 7H32\"/>{}</svg>",
            self.line(),
            self.marker(17.0, 7.0)
        )
    }
}

/// A plus.
const CROSS: [(f64, f64); 12] = [
    (-1.6, -5.0),
    (1.6, -5.0),
    (1.6, -1.6),
    (5.0, -1.6),
    (5.0, 1.6),
    (1.6, 1.6),
    (1.6, 5.0),
    (-1.6, 5.0),
    (-1.6, 1.6),
    (-5.0, 1.6),
    (-5.0, -1.6),
    (-1.6, -1.6),
];

/// An hourglass.
const STAR: [(f64, f64); 6] = [(-4.6, -4.6), (4.6, -4.6), (1.4, 0.0), (4.6, 4.6), (-4.6, 4.6), (-1.4, 0.0)];
