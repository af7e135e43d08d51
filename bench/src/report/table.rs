//! A table, for the page, for a terminal and in Markdown.

use std::fmt::Write as _;

use serde::Serialize;

use super::number::cell;

/// A table with its heading.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// Names its place in the page.
    pub(super) id: String,
    /// What it is about.
    pub title: String,
    /// How to read it.
    pub(super) note: String,
    /// What is above the columns, and whether they are of numbers.
    pub head: Vec<(String, bool)>,
    /// Its rows.
    pub rows: Vec<Vec<Cell>>,
}

/// A cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// What it says.
    pub text: String,
    pub(super) look: Emphasis,
}

/// How a cell stands out. Its text says so, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Emphasis {
    Plain,
    Good,
    Bad,
    Quiet,
}

impl Cell {
    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), look: Emphasis::Plain }
    }

    pub(super) fn look(self, look: Emphasis) -> Self {
        Self { look, ..self }
    }

    /// The value, or a dash where nothing was measured.
    pub(super) fn maybe(text: Option<String>) -> Self {
        text.map_or_else(|| Self::plain("–").look(Emphasis::Quiet), Self::plain)
    }
}

impl Table {
    /// A table with columns of words, and behind them columns of numbers.
    pub(super) fn new(id: &str, title: &str, words: &[&str], numbers: &[&str]) -> Self {
        let head = |names: &[&str], numeric| names.iter().map(|name| ((*name).to_owned(), numeric)).collect();
        let head: [Vec<_>; 2] = [head(words, false), head(numbers, true)];
        Self {
            id: id.into(),
            title: title.into(),
            note: String::new(),
            head: head.concat(),
            rows: Vec::new(),
        }
    }

    /// Takes out the columns in which nothing was measured.
    pub(super) fn trimmed(mut self) -> Self {
        let nothing = |n: usize| self.rows.iter().all(|row| row.get(n).is_none_or(|cell| cell.text == "–"));
        let kept: Vec<bool> = (0..self.head.len()).map(|n| n == 0 || !nothing(n)).collect();
        let mut keep = kept.iter();
        self.head.retain(|_| keep.next() == Some(&true));
        for row in &mut self.rows {
            let mut keep = kept.iter();
            row.retain(|_| keep.next() == Some(&true));
        }
        self
    }

    /// Heading, note and table in Markdown, with its columns aligned for a terminal.
    pub(super) fn markdown(&self) -> String {
        let mut out = format!("## {}", cell(&self.title));
        if !self.note.is_empty() {
            out.extend(["\n\n", &cell(&self.note)]);
        }
        if self.rows.is_empty() {
            return out;
        }
        let marked = |c: &Cell| match (cell(&c.text), c.look) {
            (text, Emphasis::Bad) if !text.is_empty() => format!("**{text}**"),
            (text, _) => text,
        };
        let head: Vec<String> = self.head.iter().map(|(name, _)| cell(name)).collect();
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(marked).collect()).collect();
        let width = |n: usize| {
            let column = rows.iter().chain([&head]).filter_map(|row| row.get(n));
            column.map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
        };
        let columns: Vec<(usize, bool)> =
            self.head.iter().enumerate().map(|(n, (_, numeric))| (width(n), *numeric)).collect();
        let rule =
            columns.iter().map(|&(width, numeric)| "-".repeat(width - 1) + if numeric { ":" } else { "-" });
        let rule = rule.collect();
        out.push('\n');
        for row in [&head, &rule].into_iter().chain(&rows) {
            out.push_str("\n|");
            for (cell, &(width, numeric)) in row.iter().zip(&columns) {
                // Writing to a string does not fail.
                let _ =
                    if numeric { write!(out, " {cell:>width$} |") } else { write!(out, " {cell:<width$} |") };
            }
        }
        out
    }
}
