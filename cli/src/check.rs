//! `check`: the shared suite against a server that the user runs.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use onelock_conformance::check::{self, Target};
use onelock_conformance::record::{Outcome as Ended, Record};
use onelock_conformance::report;
use onelock_conformance::runner::Extent;

use crate::args::Name;
use crate::exit::{Exit, Failure, Outcome};
use crate::{files, output, store};

#[derive(Debug, Parser)]
pub(crate) struct CheckArgs {
    /// The store's URL; without it, the one of --store.
    pub(crate) url: Option<String>,
    /// Only cases whose name has this in it. Can be repeated.
    #[arg(short, long = "case", value_name = "TEXT", value_parser = Name)]
    pub(crate) cases: Vec<String>,
    /// Multiply all volumes by this.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) volume: u64,
    /// The least number of acquire and release cycles of a trial.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) cycles: u64,
    /// Replay the random choices of another run.
    #[arg(long, value_name = "N", default_value_t = Extent::default().seed)]
    pub(crate) seed: u64,
    /// Append a JSON line for each case to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Write a page about the run to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Write a table of the run, a line for each store, in Markdown to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    /// Run nothing: make the page or the table from files that --record wrote. Can be repeated.
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["url", "record", "cases", "volume", "cycles", "seed"])]
    pub(crate) from: Vec<PathBuf>,
}

/// Runs as a client of a case when this process was started as one.
pub(crate) fn serve_if_asked() -> Option<ExitCode> {
    check::serve_if_asked(onelock::drivers())
}

pub(crate) async fn check(store: Option<String>, args: CheckArgs) -> Outcome {
    let records = if args.from.is_empty() {
        let url = args.url.clone().or(store);
        let url = url.ok_or_else(|| Failure::Usage("which store? say `onelock check URL`".into()))?;
        files::writable([&args.record, &args.report, &args.markdown])?;
        run(&url, &args).await?
    } else {
        let files = args.from.iter().map(|file| Record::read(file));
        let read = files.collect::<Result<Vec<_>, _>>();
        read.map_err(|error| Failure::Usage(error.to_string()))?.concat()
    };
    if records.is_empty() {
        let none = match &args.cases[..] {
            [] => "there is no record in what --from names".to_owned(),
            cases => format!("no case has {} in its name", cases.join(" or ")),
        };
        return Err(Failure::Usage(none));
    }
    files::write(args.report.as_ref(), || Ok(report::page(&records)))?;
    files::write(args.markdown.as_ref(), || Ok(report::markdown(&records)))?;
    let count = |outcome| records.iter().filter(|record| record.outcome == outcome).count();
    let [passed, failed, ignored] = [Ended::Passed, Ended::Failed, Ended::Ignored].map(count);
    output::line(format_args!("{passed} passed, {failed} failed, {ignored} do not apply"))?;
    Ok(if failed > 0 { Exit::NO } else { Exit::OK })
}

async fn run(url: &str, args: &CheckArgs) -> Result<Vec<Record>, Failure> {
    // Says what is wrong with the URL as every other command does, before anything begins.
    store::with(Some(url.to_owned()), async |_| Ok(())).await?;
    let target = Target::connect(url, onelock::drivers()).await?;
    let extent = Extent { volume: args.volume, cycles: args.cycles, seed: args.seed };
    let (cases, file) = (args.cases.clone(), args.record.clone());
    let work = move || {
        let bar = ProgressBar::new_spinner().with_style(ProgressStyle::default_spinner());
        bar.enable_steady_tick(Duration::from_millis(200));
        let records = check::run(target, &cases, extent, file.as_deref(), |record| {
            // A reader that has gone shows at the end: the record and the report are yet to be written.
            let _ = bar.suspend(|| output::line(format_args!("{}", line(record))));
        });
        bar.finish_and_clear();
        records
    };
    let ended = tokio::task::spawn_blocking(work).await;
    ended.map_err(Failure::other)?.map_err(Failure::other)
}

fn line(record: &Record) -> String {
    let outcome = match record.outcome {
        Ended::Passed => "passed ",
        Ended::Failed => "FAILED ",
        Ended::Ignored => "ignored",
    };
    let faults: u64 = record.faults.values().sum();
    let mut line = format!("{outcome} {}", record.case);
    if record.outcome != Ended::Ignored {
        line.push_str(&format!(": {:.1} s, {} calls, {faults} faults", record.seconds, record.calls));
    }
    if let Some(why) = &record.why {
        let why: Vec<_> = why.lines().map(output::clean).collect();
        line.push_str(&format!(": {}", why.join("\n    ")));
    }
    line
}
