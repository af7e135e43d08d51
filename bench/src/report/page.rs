//! The page: its sections, in the order in which someone who chooses a store asks.

use std::fmt::Write as _;

use super::number::text;
use super::style::CSS;
use super::table::Table;
use super::view::View;
use super::{plots, tables, terms};
use crate::data::{Metric, Run};

/// One HTML page, well-formed as XML, too.
pub(super) fn page(run: &Run) -> String {
    let mut page = Page::default();
    let view = View::new(run);
    let [cycle, names, contended] = [
        plots::distributions(view, terms::title("cycle"), terms::CYCLE),
        plots::against_tasks(view, "Many names", "names", Metric::Rate, "tasks of one client (log)"),
        plots::against_tasks(view, "Owner changes", "contended", Metric::OwnerChanges, "contenders (log)"),
    ];
    let all = [cycle.all, names.all, contended.all].into_iter().flatten().collect();
    page.under(&tables::summary(view), all);
    if let Some(losses) = tables::losses(view) {
        page.section(&losses.id, &losses.title, &losses.section());
    }
    page.under(&tables::ratios(view), plots::over_floor(view));
    latency(&mut page, view, cycle.stores);
    page.plots("names", terms::title("names"), &note(view, "names"), names.stores);
    page.plots("contended", terms::title("contended"), &note(view, "contended"), contended.stores);
    fairness(&mut page, view);
    page.under(&tables::peers(view), plots::leads(view));
    page.table(&tables::requests(view));
    costs(&mut page, view);
    page.table(&tables::left_out(view));
    page.table(&tables::subjects(view));
    everything(&mut page, view);
    page.section("repeat", "How to repeat it", &repeat(run));
    page.close(run)
}

/// Sections as they come, and the way to them.
#[derive(Default)]
struct Page {
    body: String,
    nav: String,
}

impl Page {
    /// A section with its own heading in `html`; nothing when there is nothing to show.
    fn section(&mut self, id: &str, title: &str, html: &str) {
        if !html.is_empty() {
            // Writing to a string does not fail.
            let _ = writeln!(self.nav, "<a href=\"#{}\">{}</a>", text(id), text(title));
            self.body.push_str(html);
        }
    }

    fn table(&mut self, table: &Table) {
        if !table.rows.is_empty() {
            self.section(&table.id, &table.title, &table.section());
        }
    }

    /// A table with plots under it.
    fn under(&mut self, table: &Table, figures: Vec<String>) {
        if !table.rows.is_empty() {
            self.section(&table.id, &table.title, &(table.section() + &grid(figures)));
        }
    }

    /// Plots with a heading.
    fn plots(&mut self, id: &str, title: &str, note: &str, figures: Vec<String>) {
        if !figures.is_empty() {
            let head = format!("<h2 id=\"{}\">{}</h2>\n<p>{}</p>\n", text(id), text(title), text(note));
            self.section(id, title, &(head + &grid(figures)));
        }
    }

    fn close(self, run: &Run) -> String {
        let mut facts = String::new();
        for fact in tables::facts(run) {
            let _ = writeln!(facts, "<p class=\"dim\">{}</p>", text(&fact));
        }
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" \
             content=\"width=device-width, initial-scale=1\"/><title>onelock bench</title><style>{CSS}</style></head>\n\
             <body><h1>onelock bench</h1>\n{facts}<nav>{}</nav>\n{}</body></html>\n",
            self.nav, self.body
        )
    }
}

fn grid(figures: Vec<String>) -> String {
    if figures.is_empty() {
        return String::new();
    }
    format!("<div class=\"plots\">\n{}</div>\n", figures.concat())
}

fn note(view: View<'_>, workload: &str) -> String {
    view.about(workload).map(|info| info.about.clone()).unwrap_or_default()
}

fn latency(page: &mut Page, view: View<'_>, cycle: Vec<String>) {
    let hand_over = plots::distributions(view, terms::title("hand-over"), terms::HAND_OVER);
    let hand_over = hand_over.all.into_iter().chain(hand_over.stores).collect();
    for (point, figures) in [(terms::CYCLE, cycle), (terms::HAND_OVER, hand_over)] {
        let title = terms::title(point.workload);
        let mut first: Vec<String> =
            plots::latencies(view, &format!("{title}: latency"), point).into_iter().collect();
        first.extend(figures);
        page.plots(point.workload, title, &note(view, point.workload), first);
    }
}

fn fairness(page: &mut Page, view: View<'_>) {
    let fairness = [
        plots::bars(
            view,
            ("Shares of 8 contenders in order", "1: all got the same. Longer is better."),
            "Jain index",
            terms::CONTENDED,
            Metric::Jain,
        ),
        plots::bars(
            view,
            (
                "Overtaking among 8 contenders in order",
                "Grants that overtook an older request. Shorter is better.",
            ),
            "inversions in a thousand grants",
            terms::CONTENDED,
            Metric::Inversions,
        ),
        plots::bars(
            view,
            (
                "How much of the time the lock is in use",
                "Longer is better; a lock that costs nothing is near 100 %.",
            ),
            "share of the time",
            terms::DUTY,
            Metric::InUse,
        ),
    ];
    page.under(&tables::fairness(view), fairness.into_iter().flatten().collect());
}

fn costs(page: &mut Page, view: View<'_>) {
    let figures = [
        plots::bars(
            view,
            ("64 idle waiters: requests to the server", "Shorter is better."),
            "server requests/s",
            terms::IDLE,
            Metric::ServerRate,
        ),
        plots::bars(
            view,
            ("Held locks: processor time of the client", "Shorter is better."),
            "share of one core",
            terms::HELD,
            Metric::ClientCpu,
        ),
        plots::bars(
            view,
            ("Memory of the client a held lock", "Shorter is better."),
            "memory",
            terms::HELD,
            Metric::Memory,
        ),
        plots::latencies(view, "Connection to first lock", terms::CONNECT),
        plots::latencies(view, "Takeover after a crash", terms::TAKEOVER),
    ];
    page.under(&tables::costs(view), figures.into_iter().flatten().collect());
}

fn everything(page: &mut Page, view: View<'_>) {
    let mut html = String::new();
    for workload in view.workloads() {
        let table = tables::everything(view, workload);
        if !table.rows.is_empty() {
            let _ = write!(
                html,
                "<details><summary>{}</summary>\n<p>{}</p>{}</details>\n",
                text(terms::title(workload)),
                text(&table.note),
                table.html()
            );
        }
    }
    if !html.is_empty() {
        let head = "<h2 id=\"all\">All figures</h2>\n<p>Medians, and in brackets the least and the most of the rounds.</p>\n";
        page.section("all", "All figures", &(head.to_owned() + &html));
    }
}

fn repeat(run: &Run) -> String {
    format!(
        "<h2 id=\"repeat\">How to repeat it</h2>\n<pre>cargo install --path cli --all-features\nonelock bench --all --rounds {} --html bench.html --json bench.json</pre>\n\
         <p>It starts every server that the machine has. Times are those of this machine; counts and ratios are not.</p>\n",
        run.rounds
    )
}
