//! Holds the numbered contract of `Backend` and the table of cases together.
// Helpers of tests, which may unwrap and panic as tests do.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

use onelock_conformance::case;

const CONTRACT: &str = include_str!("../../lock-core/src/store/backend.rs");

/// The cases that each clause of the contract names.
fn clauses() -> BTreeMap<u8, Vec<String>> {
    let text: Vec<_> = CONTRACT.lines().filter_map(|line| line.strip_prefix("//!")).map(str::trim).collect();
    let text = text.join(" ");
    let mut clauses = BTreeMap::new();
    for part in text.split("- **C").skip(1) {
        let (number, rest) = part.split_once("**").unwrap();
        let cases = rest.split_once("(cases: ").map_or("", |(_, cases)| cases.split_once(')').unwrap().0);
        let cases = cases.split(',').map(|case| case.trim().trim_matches('`').to_owned());
        let before = clauses.insert(number.parse().unwrap(), cases.filter(|case| !case.is_empty()).collect());
        assert!(before.is_none(), "C{number} is there twice");
    }
    clauses
}

#[test]
fn every_clause_has_a_case_and_every_named_case_exists() {
    let clauses = clauses();
    assert_eq!(clauses.keys().copied().collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>());
    let table: BTreeMap<_, _> = case::all().map(|case| (case.name, case.clauses)).collect();
    for (number, cases) in &clauses {
        assert!(!cases.is_empty(), "C{number} names no case");
        for name in cases {
            let proves = table
                .get(name.as_str())
                .unwrap_or_else(|| panic!("C{number} names `{name}`, which is no case"));
            assert!(
                proves.contains(number),
                "C{number} names `{name}`, which says that it proves {proves:?}"
            );
        }
    }
    for case in case::all() {
        for number in case.clauses {
            assert!(
                clauses.contains_key(number),
                "`{}` says that it proves C{number}, which is no clause",
                case.name
            );
        }
    }
}

#[test]
fn names_are_unique_and_needs_are_known() {
    let mut names = BTreeSet::new();
    let flags: BTreeSet<_> =
        onelock_core::Capabilities::of_lines().flags().into_iter().map(|(name, _)| name).collect();
    for case in case::all() {
        assert!(names.insert(case.name), "`{}` is there twice", case.name);
        for need in case.needs {
            if let case::Need::Can(flag) = need {
                assert!(flags.contains(flag), "`{}` needs `{flag}`, which no store declares", case.name);
            }
        }
    }
}

#[test]
fn every_case_says_what_it_proves() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cases");
    let mut source = String::new();
    for file in std::fs::read_dir(folder).unwrap() {
        source.push_str(&std::fs::read_to_string(file.unwrap().path()).unwrap());
    }
    let lines: Vec<_> = source.lines().collect();
    for case in case::all() {
        let head = format!("async fn {}(ctx: &Ctx) -> Verdict {{", case.name);
        let at = lines.iter().position(|line| **line == head).unwrap_or_else(|| panic!("no `{head}`"));
        assert!(lines[at - 1].starts_with("/// "), "`{}` has no doc comment", case.name);
    }
}
