//! A table, for the page and in Markdown.

use std::fmt::Write as _;

use serde::Serialize;

use super::number::cell;

/// A table with its heading.
#[derive(Serialize)]
pub(super) struct Table {
    /// Names its place in the page.
    pub(super) id: String,
    pub(super) title: String,
    /// How to read it.
    pub(super) note: String,
    /// What is above the columns, and whether they are of numbers.
    pub(super) head: Vec<(String, bool)>,
    pub(super) rows: Vec<Vec<Cell>>,
}

/// A cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) look: Look,
}

/// How a cell stands out. Its text says so, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Look {
    Plain,
    Good,
    Bad,
    Quiet,
}

impl Cell {
    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), look: Look::Plain }
    }

    pub(super) fn look(self, look: Look) -> Self {
        Self { look, ..self }
    }

    /// The value, or a dash where nothing was measured.
    pub(super) fn maybe(text: Option<String>) -> Self {
        text.map_or_else(|| Self::plain("–").look(Look::Quiet), Self::plain)
    }
}

/// A column of words.
pub(super) fn words(head: &str) -> (String, bool) {
    (head.into(), false)
}

/// A column of numbers.
pub(super) fn numbers(head: &str) -> (String, bool) {
    (head.into(), true)
}

impl Table {
    /// Takes out the columns in which nothing was measured.
    pub(super) fn trimmed(mut self) -> Self {
        let empty: Vec<bool> = (0..self.head.len())
            .map(|n| n > 0 && self.rows.iter().all(|row| row.get(n).is_none_or(|cell| cell.text == "–")))
            .collect();
        let kept = |n: &mut usize| {
            *n += 1;
            !empty.get(*n - 1).copied().unwrap_or(false)
        };
        let mut n = 0;
        self.head.retain(|_| kept(&mut n));
        for row in &mut self.rows {
            let mut n = 0;
            row.retain(|_| kept(&mut n));
        }
        self
    }

    /// Heading, note and table in Markdown, with its columns aligned for a terminal.
    pub(super) fn markdown(&self) -> String {
        let mut out = format!("## {}\n", cell(&self.title));
        if !self.note.is_empty() {
            let _ = write!(out, "\n{}\n", cell(&self.note));
        }
        if !self.rows.is_empty() {
            out.push('\n');
            out.push_str(&self.rows());
        }
        out.truncate(out.trim_end().len());
        out
    }

    /// The table alone in Markdown.
    fn rows(&self) -> String {
        let head: Vec<String> = self.head.iter().map(|(head, _)| cell(head)).collect();
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| row.iter().map(|c| marked(&cell(&c.text), c.look)).collect())
            .collect();
        let width = |n: usize| {
            let cells = rows.iter().filter_map(|row| row.get(n)).chain(head.get(n));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
        };
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        let line = |cells: &[String]| {
            let mut line = String::from("|");
            for ((cell, width), (_, numeric)) in cells.iter().zip(&widths).zip(&self.head) {
                let _ = if *numeric {
                    write!(line, " {cell:>width$} |")
                } else {
                    write!(line, " {cell:<width$} |")
                };
            }
            line.push('\n');
            line
        };
        let rule: Vec<String> = widths
            .iter()
            .zip(&self.head)
            .map(
                |(&width, &(_, numeric))| {
                    if numeric { format!("{}:", "-".repeat(width - 1)) } else { "-".repeat(width) }
                },
            )
            .collect();
        let mut out = line(&head) + &line(&rule);
        rows.iter().for_each(|row| out.push_str(&line(row)));
        out
    }
}

fn marked(text: &str, look: Look) -> String {
    if look == Look::Bad && !text.is_empty() { format!("**{text}**") } else { text.into() }
}
