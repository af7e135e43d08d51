//! The page: its sections, in the order in which someone who chooses a store asks.

use minijinja::{Environment, context};
use serde::Serialize;

use super::plot::Plot;
use super::table::Table;
use super::view::View;
use super::{number, plots, tables, terms};
use crate::data::{Metric, Run};
use crate::subject::Failure;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");

/// A heading with what is under it.
#[derive(Default, Serialize)]
struct Section {
    id: String,
    title: String,
    note: String,
    table: Option<Table>,
    plots: Vec<Plot>,
    /// Tables that are shown when somebody asks for them.
    details: Vec<Table>,
}

impl Section {
    fn of(table: Table, plots: impl IntoIterator<Item = Plot>) -> Self {
        let (id, title, note) = (table.id.clone(), table.title.clone(), table.note.clone());
        Self { id, title, note, table: Some(table), plots: plots.into_iter().collect(), ..Self::default() }
    }

    fn plots(view: View<'_>, workload: &str, plots: impl IntoIterator<Item = Plot>) -> Self {
        let note = view.about(workload).map(|info| info.about.clone()).unwrap_or_default();
        let (id, title) = (workload.into(), terms::title(workload).into());
        Self { id, title, note, plots: plots.into_iter().collect(), ..Self::default() }
    }

    fn has_something(&self) -> bool {
        self.table.as_ref().is_some_and(|table| !table.rows.is_empty() || table.id == tables::LOSSES)
            || !self.plots.is_empty()
            || !self.details.is_empty()
    }
}

/// One HTML page, well-formed as XML, too.
pub(super) fn page(run: &Run) -> Result<String, Failure> {
    let view = View::new(run);
    let mut sections = sections(view);
    sections.retain(Section::has_something);
    let mut templates = Environment::new();
    templates.add_template("page.html", PAGE)?;
    let page = templates.get_template("page.html")?;
    let facts = tables::facts(run);
    let shown = page.render(context! { style => STYLE, facts, sections, rounds => run.rounds })?;
    Ok(shown.chars().map(number::printable).collect())
}

fn sections(view: View<'_>) -> Vec<Section> {
    let cycle = plots::latencies(view, "Uncontended cycle: latency", terms::CYCLE);
    let hand_over = plots::latencies(view, "Hand-over: latency", terms::HAND_OVER);
    let names = plots::against_tasks(view, "names", Metric::Rate, "tasks of one client (log)");
    let contended = plots::against_tasks(view, "contended", Metric::OwnerChanges, "contenders (log)");
    let fairness = [
        plots::bars(
            view,
            "Shares of 8 contenders in order",
            "1: all got the same.",
            terms::CONTENDED,
            Metric::Jain,
        ),
        plots::bars(view, "Time in use", "Longer is better.", terms::DUTY, Metric::InUse),
    ];
    let costs = [
        plots::bars(view, "64 idle waiters: requests", "Shorter is better.", terms::IDLE, Metric::ServerRate),
        plots::bars(view, "Held locks: processor time", "Shorter is better.", terms::HELD, Metric::ClientCpu),
        plots::bars(view, "Memory of a held lock", "Shorter is better.", terms::HELD, Metric::Memory),
        plots::latencies(view, "Connection to first lock", terms::CONNECT),
        plots::latencies(view, "Takeover after a crash", terms::TAKEOVER),
    ];
    let mut details: Vec<_> =
        view.workloads().into_iter().map(|id| tables::everything(view, id, true)).collect();
    details.retain(|table| !table.rows.is_empty());
    let all = Section {
        id: "all".into(),
        title: "All figures".into(),
        note: "Medians, and in brackets the least and the most of the rounds.".into(),
        details,
        ..Section::default()
    };
    let mut sections = vec![Section::of(tables::summary(view), [])];
    sections.extend(tables::losses(view).map(|losses| Section::of(losses, [])));
    sections.extend([
        Section::of(tables::ratios(view), plots::over_baseline(view)),
        Section::of(tables::peers(view), plots::leads(view)),
        Section::plots(view, "cycle", cycle),
        Section::plots(view, "hand-over", hand_over),
        Section::plots(view, "names", names),
        Section::plots(view, "contended", contended),
        Section::plots(view, "duty", fairness.into_iter().flatten()),
        Section::plots(view, "held", costs.into_iter().flatten()),
        Section::of(tables::left_out(view), []),
        Section::of(tables::subjects(view), []),
        all,
    ]);
    sections
}
