//! Numbers, tables and their Markdown.

use super::sample;
use crate::data::Metric;
use crate::report::number::{bytes, cell, plain, share, short, time, times};
use crate::report::tables;
use crate::report::view::View;
use crate::report::{html, markdown};

#[test]
fn numbers_have_three_digits_that_matter() {
    for (value, told) in [
        (0.0, "0"),
        (-0.0, "0"),
        (2.0, "2"),
        (2.016, "2.02"),
        (0.12345, "0.123"),
        (9.999, "10"),
        (99.97, "100"),
        (999.6, "1\u{202f}000"),
        (1_234_567.0, "1\u{202f}234\u{202f}567"),
        (-12_345.0, "-12\u{202f}345"),
        (100.0, "100"),
        (f64::NAN, "–"),
        (f64::INFINITY, "–"),
    ] {
        assert_eq!(plain(value), told, "{value}");
    }
}

#[test]
fn values_carry_their_unit() {
    let told = [time(0.08), time(35.04), time(999.7), time(1_234_000.0), time(0.0)];
    assert_eq!(told, ["80\u{a0}ns", "35\u{a0}µs", "1\u{a0}ms", "1.23\u{a0}s", "0"]);
    assert_eq!([bytes(512.0), bytes(1536.0)], ["512\u{a0}B", "1.5\u{a0}KiB"]);
    assert_eq!(
        [share(0.957), short(187_344.0), times(1.154), times(12.34)],
        ["95.7\u{a0}%", "187k", "1.15×", "12.3×"]
    );
}

#[test]
fn text_is_escaped() {
    assert_eq!(cell("a|b\n<i>`*["), "a\\|b &lt;i>\\`\\*\\[");
}

#[test]
fn the_rows_of_a_markdown_table_are_of_one_width() {
    for run in [sample::run(), sample::odd()] {
        let mut bars = None;
        for line in markdown(&run).lines() {
            let now = line.starts_with('|').then(|| line.replace("\\|", "").matches('|').count());
            assert!(bars.is_none() || now.is_none() || bars == now, "{line}");
            bars = now;
        }
    }
}

#[test]
fn the_summary_tells_of_each_store_what_matters() {
    let run = sample::run();
    let table = tables::summary(View::new(&run));
    let redis = table.rows.iter().find(|row| row[0].text == "redis").expect("a row");
    let told: Vec<_> = redis.iter().map(|cell| cell.text.as_str()).collect();
    // 1.2 times the driver, two libraries beside it: one slower, one faster in five of ten, level in the counts.
    assert_eq!(told[1..4], ["35\u{a0}µs", "1.20×", "2"]);
    assert_eq!(told[told.len() - 1], "6 / 8 / 6");
}

#[test]
fn what_misses_its_goal_stands_out() {
    let run = sample::run();
    let ratios = tables::ratios(View::new(&run)).markdown();
    assert!(ratios.contains("**1.20×**") && ratios.contains("**0.83×**"), "{ratios}");
    let mut good = run.clone();
    good.outcomes.retain(|outcome| outcome.subject != "redis-baseline");
    let baseline: Vec<_> = good.outcomes.iter().filter(|o| o.subject == "redis").cloned().collect();
    good.outcomes.extend(baseline.into_iter().map(|mut outcome| {
        outcome.subject = "redis-baseline".into();
        outcome
    }));
    let ratios = tables::ratios(View::new(&good)).markdown();
    assert!(ratios.contains("1.00×") && !ratios.contains("**"), "{ratios}");
}

#[test]
fn a_ratio_needs_something_to_be_over() {
    let mut run = sample::run();
    for outcome in run.outcomes.iter_mut().filter(|outcome| outcome.subject == "redis-baseline") {
        outcome.figures.values_mut().for_each(|figure| *figure = sample::exact(0.0));
    }
    let ratios = tables::ratios(View::new(&run));
    assert!(!ratios.markdown().contains('×') || ratios.rows.len() == 1, "{}", ratios.markdown());
    assert!(!ratios.rows[0].iter().any(|cell| cell.text.contains('×')), "{}", ratios.markdown());
}

#[test]
fn what_was_left_out_is_told_with_its_reason() {
    let run = sample::run();
    for report in [html(&run).unwrap(), markdown(&run)] {
        assert!(report.contains("redis, slowlock 1.0") && report.contains("it has no re-entry"), "{report}");
    }
    assert!(!markdown(&sample::empty()).contains("Left out"));
    // Once for each reason.
    let mut run = run;
    for (workload, size, why) in [("contended", "8", "it has no re-entry"), ("held", "", "another reason")] {
        run.left_out.push(crate::data::LeftOut {
            workload: workload.into(),
            size: size.into(),
            subject: "slow".into(),
            why: why.into(),
        });
    }
    let rows = tables::left_out(View::new(&run)).rows;
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0][1].text, "Re-entry; One name, many contenders (8)");
}

#[test]
fn a_library_is_beside_the_store_it_is_compared_with() {
    let run = sample::run();
    let names = |store: &str| {
        View::new(&run).parts(store).iter().map(|(subject, _)| subject.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names("postgres"), ["postgres"]);
    assert_eq!(names("postgres+session"), ["postgres+session", "advisory"]);
}

#[test]
fn an_interrupted_run_and_a_busy_machine_are_told_first() {
    let mut run = sample::run();
    assert!(!markdown(&run).contains("busy") && !markdown(&run).contains("ended before"));
    run.interrupted = true;
    run.machine.load = 1.5;
    let told = markdown(&run);
    assert!(told.starts_with("The run was ended before") && told.contains("busy"), "{told}");
    // The spread of one round is not none.
    assert!(told.contains("Between the rounds"), "{told}");
    run.rounds = 1;
    assert!(!markdown(&run).contains("Between the rounds"));
}

#[test]
fn every_metric_has_a_name_of_its_own() {
    let mut names: Vec<_> = Metric::ALL.map(crate::report::terms::metric).to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Metric::ALL.len());
}
