//! A run against an older one.

use std::fmt::Write as _;

use super::number;
use super::table::{Cell, Look, Table, numbers, words};
use super::terms;
use super::verdicts::{self, Verdict};
use super::view::{self, View};
use crate::data::{FORMAT, Figure, Machine, Metric, Outcome, Run};

/// A figure that both runs have.
struct Pair<'a> {
    outcome: &'a Outcome,
    subject: String,
    metric: Metric,
    old: Figure,
    new: Figure,
    verdict: Verdict,
}

pub(super) fn compare(old: &Run, new: &Run) -> String {
    for (which, run) in [("older", old), ("newer", new)] {
        if run.format != FORMAT {
            return format!(
                "These runs cannot be compared: the {which} one is of format {}, this program reads format {FORMAT}.\n",
                run.format
            );
        }
    }
    let pairs = pairs(old, new);
    let count = |verdict| pairs.iter().filter(|pair| pair.verdict == verdict).count();
    let mut out = format!(
        "# {} {} against {} {}\n\n{} better, {} worse, {} the same within the spread.\n",
        number::cell(&new.version),
        number::cell(&new.began),
        number::cell(&old.version),
        number::cell(&old.began),
        count(Verdict::Better),
        count(Verdict::Worse),
        count(Verdict::Same),
    );
    // Writing to a string does not fail.
    for caution in cautions(old, new) {
        let _ = write!(out, "\n**{}**\n", number::cell(&caution));
    }
    for (id, verdict) in [("Worse", Verdict::Worse), ("Better", Verdict::Better)] {
        let found: Vec<_> = pairs.iter().filter(|pair| pair.verdict == verdict).collect();
        section(&mut out, id, &found);
    }
    let same: Vec<_> = pairs.iter().filter(|pair| pair.verdict == Verdict::Same).collect();
    section(&mut out, "Same within the spread", &same);
    list(&mut out, "New", missing(new, old));
    list(&mut out, "Gone", missing(old, new));
    out
}

/// What must be known before the figures are believed.
fn cautions(old: &Run, new: &Run) -> Vec<String> {
    let mut cautions = Vec::new();
    let tell = |machine: &Machine| {
        format!(
            "{}, {} cores, {}, {}",
            machine.cpu,
            machine.cores,
            number::bytes(machine.memory as f64),
            machine.system
        )
    };
    let (was, is) = (tell(&old.machine), tell(&new.machine));
    if was != is {
        cautions.push(format!("The machines differ: {was}; now {is}. Only counts can be compared."));
    }
    for (which, run) in [("older", old), ("newer", new)] {
        if run.rounds < 2 {
            cautions.push(format!(
                "The {which} run has one round, so its spread is not known: any difference counts."
            ));
        }
        if run.interrupted {
            cautions.push(format!("The {which} run was ended before it was through."));
        }
        if run.machine.load > 0.5 * run.machine.cores as f64 {
            cautions.push(format!(
                "The machine was busy when the {which} run began: load {}.",
                number::plain(run.machine.load)
            ));
        }
    }
    for subject in &new.subjects {
        let before = old.subjects.iter().find(|before| before.id == subject.id);
        let told = |library: &str, server: &Option<String>| match server {
            Some(server) => format!("{library} on {server}"),
            None => library.to_owned(),
        };
        if let Some(before) = before {
            let (was, is) = (told(&before.library, &before.server), told(&subject.library, &subject.server));
            if was != is {
                cautions.push(format!("{} was {was}; now {is}.", subject.label()));
            }
        }
    }
    cautions
}

/// The outcome of the same workload, size and subject.
fn same<'a>(run: &'a Run, outcome: &Outcome) -> Option<&'a Outcome> {
    run.outcomes.iter().find(|other| {
        other.workload == outcome.workload && other.size == outcome.size && other.subject == outcome.subject
    })
}

fn pairs<'a>(old: &Run, new: &'a Run) -> Vec<Pair<'a>> {
    let names = View::new(new);
    let mut pairs = Vec::new();
    for outcome in &new.outcomes {
        let Some(before) = same(old, outcome) else { continue };
        for metric in Metric::ALL {
            if let (Some(old), Some(new)) = (view::figure(before, metric), view::figure(outcome, metric)) {
                let verdict = verdicts::judge(metric, &new, &old);
                let subject = names.label(&outcome.subject);
                pairs.push(Pair { outcome, subject, metric, old, new, verdict });
            }
        }
    }
    pairs
}

/// What `run` has and `other` has not: outcomes, and figures of those that both have.
fn missing(run: &Run, other: &Run) -> Vec<String> {
    let names = View::new(run);
    let mut missing = Vec::new();
    for outcome in &run.outcomes {
        let mut name = terms::title(&outcome.workload).to_owned();
        if !outcome.size.is_empty() {
            let _ = write!(name, " {}", outcome.size);
        }
        let _ = write!(name, ", {}", names.label(&outcome.subject));
        let Some(there) = same(other, outcome) else {
            missing.push(name);
            continue;
        };
        for metric in Metric::ALL {
            if view::figure(outcome, metric).is_some() && view::figure(there, metric).is_none() {
                missing.push(format!("{name}: {}", terms::metric(metric)));
            }
        }
    }
    missing
}

fn list(out: &mut String, title: &str, items: Vec<String>) {
    if !items.is_empty() {
        let _ = write!(out, "\n## {title}\n\n");
        for item in items {
            let _ = writeln!(out, "- {}", number::cell(&item));
        }
    }
}

fn section(out: &mut String, title: &str, pairs: &[&Pair<'_>]) {
    let rows = pairs.iter().map(|pair| {
        let told = |figure: &Figure| {
            let value = |value| terms::value(pair.metric, value);
            if figure.least == figure.most {
                return value(figure.median);
            }
            format!("{} ({} … {})", value(figure.median), value(figure.least), value(figure.most))
        };
        let (word, look) = match pair.verdict {
            Verdict::Better => ("better", Look::Good),
            Verdict::Worse => ("worse", Look::Bad),
            Verdict::Same => ("same", Look::Quiet),
        };
        vec![
            Cell::plain(terms::title(&pair.outcome.workload)),
            Cell::plain(&pair.outcome.size),
            Cell::plain(&pair.subject),
            Cell::plain(terms::metric(pair.metric)),
            Cell::plain(told(&pair.old)),
            Cell::plain(told(&pair.new)),
            Cell::maybe(view::ratio(pair.new.median, pair.old.median).map(number::times)),
            Cell::plain(word).look(look),
        ]
    });
    let table = Table {
        id: String::new(),
        title: title.into(),
        note: String::new(),
        head: vec![
            words("workload"),
            words("size"),
            words("what"),
            words("figure"),
            numbers("old"),
            numbers("new"),
            numbers("ratio"),
            words("verdict"),
        ],
        rows: rows.collect(),
    };
    if !table.rows.is_empty() {
        let _ = write!(out, "\n{}\n", table.markdown());
    }
}
