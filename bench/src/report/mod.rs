//! The report on a run: a page, tables in Markdown, and a comparison of two runs.
//!
//! Everything here reads a [`Run`] and nothing else, so that a run of last month is drawn as one of today.

mod compare;
mod number;
mod plot;
mod plots;
mod table;
mod tables;
mod terms;
#[cfg(test)]
mod tests;
mod verdicts;
mod view;

use std::fs;
use std::path::Path;

use minijinja::{Environment, context};
use serde::Deserialize;

use self::view::View;
use crate::data::{FORMAT, Run};
use crate::subject::Failure;

pub use table::{Cell, Table};

/// One HTML page about the run, complete in itself: it asks the network for nothing and needs no script. It is well-formed as
/// XML, too.
///
/// # Errors
///
/// When the page's template is broken: a fault of this library.
pub fn html(run: &Run) -> Result<String, Failure> {
    let view = View::new(run);
    let [standing, measured, figures] = tables::all(view);
    let mut templates = Environment::new();
    templates.add_template("page.html", include_str!("page.html"))?;
    let page = templates.get_template("page.html")?.render(context! {
        style => include_str!("page.css"),
        facts => tables::facts(run),
        rounds => run.rounds,
        panels => plots::panels(view),
        standing, measured, figures,
    })?;
    Ok(page.chars().map(number::printable).collect())
}

/// The tables of the page in Markdown.
#[must_use]
pub fn markdown(run: &Run) -> String {
    let tables = tables::all(View::new(run));
    let all = tables.iter().flatten().map(Table::markdown);
    tables::facts(run).into_iter().chain(all).collect::<Vec<_>>().join("\n\n")
}

/// The figures, medians of the rounds, a workload each; and what was left out.
#[must_use]
pub fn terminal(run: &Run) -> Vec<Table> {
    let view = View::new(run);
    let workloads = view.workloads().into_iter().map(|workload| tables::everything(view, workload, false));
    workloads.chain([tables::left_out(view)]).filter(|table| !table.rows.is_empty()).collect()
}

/// What changed from `old` to `new`, in Markdown that can be read in a terminal. A figure is called better or worse only
/// when the ranges of its rounds do not overlap.
#[must_use]
pub fn compare(old: &Run, new: &Run) -> String {
    compare::compare(old, new)
}

/// Reads a run.
///
/// # Errors
///
/// When there is no such file, it is no run, or it is of another [`FORMAT`].
pub fn read(path: impl AsRef<Path>) -> Result<Run, Failure> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    let path = path.as_ref();
    let told = |why: &dyn std::fmt::Display| Failure::from(format!("{}: {why}", path.display()));
    let json = fs::read_to_string(path).map_err(|e| told(&e))?;
    // The version comes first: the rest of another version would be called damaged.
    let head: Head = serde_json::from_str(&json).map_err(|e| told(&format!("not a run: {e}")))?;
    if head.format != FORMAT {
        return Err(told(&format!("a run of format {}; this program reads format {FORMAT}", head.format)));
    }
    serde_json::from_str(&json).map_err(|e| told(&format!("not a run: {e}")))
}

/// A run as [`read`] reads it.
///
/// # Errors
///
/// When a figure is no number: JSON has no word for that, and [`read`] would refuse the file.
pub fn json(run: &Run) -> Result<String, Failure> {
    for outcome in &run.outcomes {
        let mut figures =
            outcome.figures.values().flat_map(|figure| [figure.median, figure.least, figure.most]);
        if figures.any(|value| !value.is_finite()) {
            let what = format!("{} {} of {}", outcome.workload, outcome.size, outcome.subject);
            return Err(format!("{what} has a figure that is no number").into());
        }
    }
    if !run.machine.load.is_finite() {
        return Err("the machine's load is no number".into());
    }
    Ok(serde_json::to_string_pretty(run)? + "\n")
}
