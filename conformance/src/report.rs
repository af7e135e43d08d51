//! Records as a page: what was tried, how often, what held.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::record::{Outcome, Record};
use crate::trial::judge::Findings;

const STYLE: &str = "
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1c2733 }
table { border-collapse: collapse; margin: 1rem 0; width: 100% }
th, td { border-bottom: 1px solid #d7dee6; padding: .3rem .6rem; text-align: left; vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.passed { color: #17692f } .failed { color: #fff; background: #b3261e } .ignored { color: #6b7785 }
pre { background: #f4f6f8; padding: .6rem; overflow-x: auto; white-space: pre-wrap }
@media (prefers-color-scheme: dark) { body { background: #14191f; color: #d9e1e8 } th, td { border-color: #34404c }
pre { background: #1e262e } .passed { color: #6fce8b } .ignored { color: #93a1af } }
";

/// One HTML page about all records, complete in itself.
#[must_use]
pub fn page(records: &[Record]) -> String {
    let stores = by_store(records);
    let mut body = String::new();
    summary(&mut body, &stores);
    for (store, records) in &stores {
        of_store(&mut body, store, records);
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>onelock check</title><style>{STYLE}</style></head>\n\
         <body><h1>onelock check</h1>{body}</body></html>\n"
    )
}

fn by_store(records: &[Record]) -> BTreeMap<&str, Vec<&Record>> {
    let mut stores: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in records {
        stores.entry(&record.store).or_default().push(record);
    }
    stores
}

fn count(records: &[&Record], outcome: Outcome) -> usize {
    records.iter().filter(|record| record.outcome == outcome).count()
}

/// What is told of a store in one line, as texts.
const COLUMNS: [&str; 12] = [
    "passed",
    "failed",
    "does not apply",
    "calls",
    "cycles",
    "faults",
    "unclear answers",
    "leases lost",
    "writes lost, fenced",
    "writes lost, unfenced",
    "violations",
    "loss told late: half / p99 / worst",
];

fn line_of(records: &[&Record]) -> [String; COLUMNS.len()] {
    let trials: Vec<_> = records.iter().filter_map(|record| record.trial.as_ref()).collect();
    let found = |pick: fn(&Findings) -> u64| trials.iter().map(|trial| pick(trial)).sum::<u64>().to_string();
    let sum = |pick: fn(&Record) -> u64| records.iter().map(|record| pick(record)).sum::<u64>().to_string();
    let mut all = Findings::default();
    all.lateness = trials.iter().flat_map(|trial| trial.lateness.iter().copied()).collect();
    all.lateness.sort_by(f64::total_cmp);
    [
        count(records, Outcome::Passed).to_string(),
        count(records, Outcome::Failed).to_string(),
        count(records, Outcome::Ignored).to_string(),
        sum(|record| record.calls),
        sum(|record| record.cycles),
        sum(|record| record.faults.values().sum()),
        sum(|record| record.unclear),
        found(|trial| trial.lost),
        found(|trial| trial.fenced_lost),
        found(|trial| trial.unfenced_lost),
        found(|trial| trial.violations.len() as u64),
        lateness(&all),
    ]
}

/// The line of each store as a table in Markdown.
#[must_use]
pub fn markdown(records: &[Record]) -> String {
    let mut table = format!("| store | {} |\n|---|{}\n", COLUMNS.join(" | "), "--:|".repeat(COLUMNS.len()));
    for (store, records) in by_store(records) {
        // Writing to a string does not fail.
        let _ = writeln!(table, "| {store} | {} |", line_of(&records).join(" | "));
    }
    table
}

fn summary(page: &mut String, stores: &BTreeMap<&str, Vec<&Record>>) {
    page.push_str("<table><thead><tr><th>store");
    for column in COLUMNS {
        let _ = write!(page, "<th class=n>{column}");
    }
    page.push_str("</tr></thead><tbody>\n");
    for (store, records) in stores {
        let _ = write!(page, "<tr><td><a href=\"#{0}\">{0}</a>", text(store));
        for (column, value) in COLUMNS.iter().zip(line_of(records)) {
            let class = match *column {
                "failed" | "violations" | "writes lost, fenced" if value != "0" => "n failed",
                _ => "n",
            };
            let _ = write!(page, "<td class=\"{class}\">{value}");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table>\n");
}

fn of_store(page: &mut String, store: &str, records: &[&Record]) {
    let _ = writeln!(
        page,
        "<h2 id=\"{0}\">{0}</h2><table><thead><tr><th>case<th>outcome<th class=n>seconds<th class=n>calls<th>faults\
         <th class=n>violations<th class=n>told late: half / p99 / worst<th class=n>seed</tr></thead><tbody>",
        text(store)
    );
    for record in records {
        let outcome = format!("{:?}", record.outcome).to_lowercase();
        let faults: Vec<_> =
            record.faults.iter().map(|(kind, count)| format!("{} {count}", text(kind))).collect();
        let violations =
            record.trial.as_ref().map_or(String::new(), |trial| trial.violations.len().to_string());
        let _ = writeln!(
            page,
            "<tr><td>{}<td class={outcome}>{outcome}{}<td class=n>{:.1}<td class=n>{}<td>{}<td class=n>{violations}\
             <td class=n>{}<td class=n>{}</tr>",
            text(&record.case),
            record.why.as_ref().map_or(String::new(), |why| why_of(record.outcome, why)),
            record.seconds,
            record.calls,
            faults.join(", "),
            record.trial.as_ref().map_or(String::new(), lateness),
            record.seed,
        );
    }
    page.push_str("</tbody></table>\n");
}

fn why_of(outcome: Outcome, why: &str) -> String {
    match outcome {
        Outcome::Failed => format!("<pre>{}</pre>", text(why)),
        _ => format!(": {}", text(why)),
    }
}

fn lateness(trial: &Findings) -> String {
    match (trial.late(50), trial.late(99), trial.lateness.last()) {
        (Some(half), Some(p99), Some(worst)) => format!("{half:.1} / {p99:.1} / {worst:.1} ms"),
        _ => String::new(),
    }
}

/// As text of a page.
fn text(raw: &str) -> String {
    raw.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Notes;
    use crate::runner::Extent;
    use crate::verdict::Stop;

    #[test]
    fn a_failure_is_shown_as_text() {
        let notes = Notes::default();
        let mut findings = Findings::default();
        findings.faults.insert("reset".to_owned(), 1);
        notes.trial(&findings);
        let verdict = Err(Stop::failed("two held <at once>"));
        let id = ("memory", "case");
        let record = notes.record(id, Extent::default(), &verdict, std::time::Duration::from_secs(1));
        let table = markdown(std::slice::from_ref(&record));
        assert!(table.contains("| memory | 0 | 1 | 0 |"), "{table}");
        let page = page(&[record]);
        assert!(page.contains("two held &lt;at once&gt;") && page.contains("reset 1"), "{page}");
    }
}
