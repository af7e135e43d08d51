//! The page as a reader of XML sees it.

use roxmltree::{Document, Node, ParsingOptions};

use super::sample::{self, EVIL};
use crate::data::Run;
use crate::report::{html, markdown};

fn parsed<T>(run: &Run, look: impl FnOnce(&Document<'_>) -> T) -> T {
    let page = html(run).unwrap();
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(&page, options).unwrap_or_else(|e| panic!("{e}\n{page}"));
    look(&document)
}

fn all<'a>(document: &'a Document<'a>, name: &'a str) -> impl Iterator<Item = Node<'a, 'a>> {
    document.descendants().filter(move |node| node.tag_name().name() == name)
}

fn words(node: Node<'_, '_>) -> String {
    node.descendants().filter_map(|node| node.text().filter(|_| node.is_text())).collect()
}

/// A plot with this title, as its figure.
fn figure<'a>(document: &'a Document<'a>, title: &str) -> Node<'a, 'a> {
    let titled = |node: &Node<'_, '_>| node.descendants().any(|n| n.has_tag_name("h3") && words(n) == title);
    let found = all(document, "figure").find(titled);
    found.unwrap_or_else(|| panic!("no plot {title}"))
}

fn legend(figure: Node<'_, '_>) -> Vec<String> {
    figure.descendants().filter(|node| node.has_tag_name("li")).map(words).collect()
}

/// Sizes and places of everything drawn.
fn numbers(document: &Document<'_>) -> Vec<f64> {
    let drawn = all(document, "svg").flat_map(|svg| svg.descendants().collect::<Vec<_>>());
    let names = ["x", "y", "d", "points", "cx", "cy", "r", "width", "height", "transform", "viewBox"];
    let mut numbers = Vec::new();
    for node in drawn {
        for value in names.iter().filter_map(|name| node.attribute(*name)) {
            for number in value.split(|c: char| !(c.is_ascii_alphanumeric() || "-.".contains(c))) {
                for number in number.split(['M', 'L', 'H', 'V', 'v']).filter(|number| !number.is_empty()) {
                    if !matches!(number, "translate" | "rotate") {
                        numbers.push(number.parse().unwrap_or_else(|_| panic!("{number} in {value}")));
                    }
                }
            }
        }
    }
    numbers
}

#[test]
fn every_page_is_well_formed_and_draws_on_its_paper() {
    let mut one = sample::run();
    one.subjects.truncate(1);
    one.outcomes.retain(|outcome| outcome.subject == "memory");
    for run in [sample::empty(), one, sample::run(), sample::odd()] {
        parsed(&run, |page| {
            for number in numbers(page) {
                assert!(number.is_finite() && (-100.0..20_000.0).contains(&number), "{number}");
            }
        });
    }
}

#[test]
fn a_plot_has_a_title_axes_with_units_and_words_for_those_who_do_not_see_it() {
    parsed(&sample::run(), |page| {
        let plots: Vec<_> = all(page, "svg").filter(|svg| svg.attribute("role") == Some("img")).collect();
        assert!(plots.len() > 12, "{}", plots.len());
        for svg in plots {
            let told = svg.attribute("aria-label").unwrap_or_default();
            assert!(told.len() > 20 && told.chars().any(|c| c.is_ascii_digit()), "{told}");
            let axes: Vec<_> = svg.children().filter(|node| node.has_tag_name("text")).map(words).collect();
            assert!(axes.len() > 3, "{axes:?}");
        }
        let axes = words(figure(page, "Uncontended cycle: latency"));
        assert!(axes.contains("latency (log)"), "{axes}");
        assert!(axes.contains('µ'), "{axes}");
    });
}

#[test]
fn a_store_is_drawn_beside_the_driver_alone_and_the_best_other_library() {
    parsed(&sample::run(), |page| {
        let of = |section: &str| {
            let after =
                all(page, "h2").find(|heading| heading.attribute("id") == Some(section)).expect(section);
            let figures = after.next_siblings().find(|node| node.has_tag_name("div")).expect("plots");
            let titled =
                |node: &Node<'_, '_>| node.descendants().any(|n| n.has_tag_name("h3") && words(n) == "redis");
            figures.children().find(titled).expect("redis")
        };
        for section in ["names", "contended"] {
            assert_eq!(legend(of(section)), ["onelock", "driver alone", "fastlock 2.0"], "{section}");
            // Told by colour and by shape.
            let marks: Vec<_> =
                of(section).descendants().filter_map(|node| node.attribute("class")).collect();
            for class in ["f ours", "f baseline", "f peer"] {
                assert!(marks.contains(&class), "{class} of {section}: {marks:?}");
            }
        }
        for svg in all(page, "svg") {
            let lines =
                svg.children().filter(|node| node.attribute("d").is_some_and(|d| d.contains('L'))).count();
            assert!(lines <= 3, "{lines} lines in one plot");
        }
    });
}

#[test]
fn what_comes_from_data_is_text() {
    let run = sample::odd();
    parsed(&run, |page| {
        assert_eq!(all(page, "b").count(), 0, "data became markup");
        let shown = words(page.root_element());
        let readable = EVIL.replace('\u{7}', "\u{fffd}");
        // The machine, the version, a library, a remark, a reason, a workload.
        assert!(shown.matches(&readable).count() > 8, "{}", shown.matches(&readable).count());
    });
    let page = html(&run).unwrap();
    assert!(!page.contains("<script") && !page.contains("http"), "asks for something");
}

#[test]
fn nothing_that_is_no_number_is_shown() {
    let run = sample::odd();
    parsed(&run, |page| {
        let shown = words(page.root_element());
        for odd in ["NaN", "inf×", "inf ", "∞"] {
            assert!(!shown.contains(odd), "{odd}");
        }
    });
    assert!(!markdown(&run).contains("NaN"), "{}", markdown(&run));
}

#[test]
fn where_we_lose_is_said_in_words() {
    parsed(&sample::run(), |page| {
        let of = |library: &str| -> Vec<String> {
            let rows = all(page, "tr").filter(|row| row.children().any(|cell| words(cell) == library));
            let judged = rows.filter(|row| row.ancestors().all(|node| !node.has_tag_name("details")));
            judged.flat_map(|row| row.children().map(words).collect::<Vec<_>>()).collect()
        };
        let fast = of("fastlock 2.0");
        assert!(fast.iter().any(|cell| cell == "23.3\u{a0}µs\n(we lose)"), "{fast:?}");
        assert_eq!(fast.iter().filter(|cell| cell.contains("we lose")).count(), 6, "{fast:?}");
        // Of the slower one it is not said.
        let slow = of("slowlock 1.0");
        assert!(!slow.is_empty() && !slow.iter().any(|cell| cell.contains("we lose")), "{slow:?}");
    });
}

#[test]
fn zeros_on_a_logarithmic_axis_are_told() {
    let mut run = sample::run();
    let told = "Zeros have no place";
    parsed(&run, |page| assert!(!words(page.root_element()).contains(told)));
    let outcome = run.outcomes.iter_mut().find(|o| o.workload == "names" && o.size == "64").expect("names");
    outcome.figures.values_mut().for_each(|figure| *figure = sample::exact(0.0));
    parsed(&run, |page| assert!(words(page.root_element()).contains(told)));
}
