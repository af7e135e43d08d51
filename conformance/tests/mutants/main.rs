//! Known wrong ways to build such a lock: the suite must name the fault of each.
//!
//! Some are the memory store with one thing wrong, others the locks of the literature over a small key-value server, whose
//! honest twins must pass what names them. What lives in the client and in the stores' scripts is broken by `mutate.sh`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod children;
mod faults;
mod kv;
mod redlock;
mod single;
mod vehicle;
mod wrapped;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use faults::{LITERATURE, WRAPPED};
use onelock_conformance::harness::Harness;
use onelock_conformance::{Stop, case, runner};
use vehicle::Vehicle;

/// Within this every case must have named its mutant.
const LIMIT: Duration = Duration::from_secs(60);
/// How many cases run at once: nearly all of their time they wait.
const LANES: usize = 24;

/// The page that shows them to people, and the head of its tables.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/mutants.md");
const HEAD: &str = "| mutant | case | what it said | seconds |\n|---|---|---|---:|";

/// A store and a case.
struct Pair {
    name: String,
    case: &'static str,
    harness: Arc<dyn Harness>,
    /// Whether the case must fail.
    wrong: bool,
}

fn pairs() -> Vec<Pair> {
    let pair = |name: &str, case, harness, wrong| Pair { name: name.to_owned(), case, harness, wrong };
    let mut pairs = Vec::new();
    let mut honest = BTreeMap::new();
    for (name, lock, cases) in LITERATURE {
        for case in *cases {
            pairs.push(pair(name, *case, Arc::new(Vehicle(*lock)), true));
            honest.insert((format!("{:?}", lock.honest()), *case), lock.honest());
        }
    }
    for ((name, case), lock) in honest {
        pairs.push(pair(&name, case, Arc::new(Vehicle(lock)), false));
    }
    for (fault, cases) in WRAPPED {
        for case in *cases {
            pairs.push(pair(&format!("{fault:?}"), *case, wrapped::harness(*fault), true));
        }
    }
    pairs
}

/// Every mutant is refuted by each of the cases that name its fault, and every honest twin passes them. Prints the table.
#[test]
fn every_mutant_is_named() {
    let queue = Mutex::new(VecDeque::from(pairs()));
    let (rows, wrong) = (Mutex::new(BTreeSet::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                loop {
                    let Some(pair) = queue.lock().unwrap().pop_front() else { return };
                    match judge(&pair) {
                        Ok(row) => drop(rows.lock().unwrap().insert(row)),
                        Err(text) => wrong.lock().unwrap().push(text),
                    }
                }
            });
        }
    });
    let table = rows.into_inner().unwrap().into_iter().collect::<Vec<_>>().join("\n");
    println!("{HEAD}\n{table}");
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "mutants that live, and honest locks that fail:\n{}", wrong.join("\n"));
    if std::env::var_os("ONELOCK_WRITE_PAGE").is_some() {
        let page = std::fs::read_to_string(PAGE).unwrap();
        let (before, rest) = page.split_once(HEAD).unwrap();
        let after = rest.split_once("\n\n").unwrap().1;
        std::fs::write(PAGE, format!("{before}{HEAD}\n{table}\n\n{after}")).unwrap();
    }
}

/// The mutants and cases in a table of the page.
fn rows(table: &str) -> BTreeSet<(String, String)> {
    let rows =
        table.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = rows.skip(2).map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    cells.map(|row| (row[1].to_owned(), row[2].trim_matches('`').to_owned())).collect()
}

/// The page shows exactly the mutants there are: those of this program, and those of `mutate.sh`.
#[test]
fn the_page_shows_every_mutant() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (_, first) = page.split_once(HEAD).unwrap();
    let (_, second) = first.split_once(HEAD).unwrap();
    let here = pairs().into_iter().map(|pair| (pair.name, pair.case.to_owned())).collect();
    assert_eq!(rows(&format!("{HEAD}{first}")), here, "the first table of {PAGE}");
    let script = include_str!("../../mutate.sh");
    let faults = script.split("\nfault \"").skip(1).map(|fault| {
        let (name, rest) = fault.split_once('"').unwrap();
        let last =
            rest.lines().take_while(|line| !line.starts_with("fault")).find(|line| !line.ends_with('\\'));
        (name.to_owned(), last.unwrap().split_whitespace().last().unwrap().to_owned())
    });
    assert_eq!(rows(&format!("{HEAD}{second}")), faults.collect(), "the second table of {PAGE}");
}

/// The row of the table; or what went wrong, when the case did not judge as it should.
fn judge(pair: &Pair) -> Result<String, String> {
    let Pair { name, case, harness, wrong } = pair;
    let Some(found) = case::all().find(|found| found.name == *case) else {
        return Err(format!("`{case}` is no case"));
    };
    let began = Instant::now();
    let verdict = runner::run_case(Arc::clone(harness), found);
    let took = began.elapsed();
    match verdict {
        Err(Stop::Failed(text)) if *wrong && took < LIMIT => {
            Ok(format!("| {name} | `{case}` | {} | {:.1} |", first_line(&text), took.as_secs_f64()))
        }
        Ok(()) if !wrong => Ok(format!("| {name} | `{case}` | passes | {:.1} |", took.as_secs_f64())),
        other => Err(format!("{name}: {case}: {other:?} after {took:?}")),
    }
}

/// The first line, without the place in the source, short enough for a table.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let line =
        line.split_once(".rs:").and_then(|(_, rest)| rest.split_once(": ")).map_or(line, |(_, said)| said);
    let short: String = line.chars().take(120).collect();
    let short = if short.len() < line.len() { format!("{short}…") } else { short };
    short.replace('|', "\\|")
}
