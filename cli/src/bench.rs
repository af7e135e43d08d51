//! `bench`: the same workloads on any list of stores.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use onelock_bench::data::{Kind, Run};
use onelock_bench::ours::Ours;
use onelock_bench::report;
use onelock_bench::run::{Plan, Step, Stop, workloads};
use onelock_bench::subject::Subject;
use onelock_bench::workload::{self, Effort, Workload};
use tokio::sync::watch;

use crate::args::Name;
use crate::exit::{Exit, Failure, Outcome};
use crate::{files, output, store};

/// Counts what is allocated: one addition for each piece.
#[global_allocator]
static MEMORY: cap::Cap<std::alloc::System> = cap::Cap::new(std::alloc::System, usize::MAX);

/// How many bytes are allocated now.
fn allocated() -> usize {
    MEMORY.allocated()
}

/// The first word of this program where it is one of several that contend for a lock.
pub(crate) const CONTENDER: &str = "__contender";

#[derive(Debug, Parser)]
#[command(after_help = workload_list())]
pub(crate) struct BenchArgs {
    /// Stores, by URL; LABEL=URL to call one otherwise than by its scheme. Without any: the one of --store or
    /// ONELOCK_STORE, and without that memory, and an SQLite file in the folder for temporary files.
    #[arg(value_name = "[LABEL=]URL")]
    pub(crate) urls: Vec<String>,
    /// Start every server that this machine has installed, and measure all of them, and no other.
    #[arg(long, conflicts_with = "urls")]
    pub(crate) all: bool,
    /// Only this workload. Can be repeated.
    #[arg(short, long = "workload", value_name = "ID", value_parser = Name)]
    pub(crate) workloads: Vec<String>,
    /// How often each workload runs on each store. 3, or 1 with --quick.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// A short form: enough to see that all works, and for what is counted; too short for what is timed.
    #[arg(short, long)]
    pub(crate) quick: bool,
    /// Leave out two bare requests by each driver.
    #[arg(long)]
    pub(crate) no_baseline: bool,
    /// Write the figures to this file, for --compare and --from.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the tables to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    /// Write a page with plots to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Say what changed since the run that --json wrote to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) compare: Option<PathBuf>,
    /// Run nothing: take the figures from a file that --json wrote.
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["urls", "all", "workloads", "rounds", "quick", "no_baseline", "json"])]
    pub(crate) from: Option<PathBuf>,
}

fn workload_list() -> String {
    let all = workload::all();
    let lines = all.iter().map(|workload| format!("  {:<11} {}", workload.id, workload.about));
    format!("Workloads:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

pub(crate) async fn bench(store: Option<String>, args: BenchArgs) -> Outcome {
    let workloads = workloads(&args.workloads).map_err(|bad| Failure::Usage(bad.to_string()))?;
    let old = args.compare.as_deref().map(read).transpose()?;
    files::writable([&args.json, &args.markdown, &args.html])?;
    let run = match &args.from {
        Some(file) => read(file)?,
        None => measure(store, &args, workloads).await?,
    };
    // First what took so long to get.
    files::write(args.json.as_ref(), || report::json(&run).map_err(Failure::other))?;
    files::write(args.markdown.as_ref(), || Ok(report::markdown(&run)))?;
    files::write(args.html.as_ref(), || report::html(&run).map_err(Failure::other))?;
    show(&run)?;
    if let Some(old) = old {
        output::line(format_args!("\n{}", report::compare(&old, &run)))?;
    }
    // As if killed by SIGINT.
    Ok(if run.interrupted { Exit(130) } else { Exit::OK })
}

fn read(file: &Path) -> Result<Run, Failure> {
    report::read(file).map_err(|error| Failure::Usage(error.to_string()))
}

fn contender() -> std::io::Result<std::process::Command> {
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.arg(CONTENDER);
    Ok(command)
}

/// The role of [`CONTENDER`].
pub(crate) fn contend() -> std::process::ExitCode {
    let served = workload::apart::serve();
    served.map_or_else(|error| Failure::other(error).report(), |()| Exit::OK).into()
}

async fn measure(store: Option<String>, args: &BenchArgs, workloads: Vec<Workload>) -> Result<Run, Failure> {
    let effort = if args.quick { Effort::quick() } else { Effort::full() };
    let effort = Effort { memory: Some(allocated), contender: Some(contender), ..effort };
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 3 });
    // What is named by itself comes before what all commands take.
    let urls = if args.urls.is_empty() { store.into_iter().collect() } else { args.urls.clone() };
    // The servers end with it.
    let fleet;
    let mut subjects = if args.all {
        fleet = onelock_bench::servers::all().await.map_err(Failure::other)?;
        for why in &fleet.left_out {
            output::say(format_args!("left out: {why}"));
        }
        fleet.subjects.clone()
    } else if urls.is_empty() {
        own().map_err(Failure::other)?
    } else {
        named(&urls).await?
    };
    subjects.retain(|subject| !args.no_baseline || subject.info().kind != Kind::Baseline);
    let plan = Plan { subjects, workloads, rounds, effort, left_out: Vec::new() };

    let (stop, stopped) = watch::channel(Stop::Never);
    let bar = ProgressBar::new(0).with_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} of about {duration}  {wide_msg}")
            .map_err(Failure::other)?,
    );
    bar.enable_steady_tick(Duration::from_millis(500));
    let listening = tokio::spawn(listen(stop, bar.clone()));
    let shown = bar.clone();
    let progress = move |step: Step<'_>| {
        shown.set_length(step.all as u64);
        shown.set_position(step.done as u64);
        shown.set_message(format!("{} {} on {}", step.workload, step.size, step.subject));
    };
    let run = tokio::spawn(plan.run(stopped, progress)).await;
    listening.abort();
    bar.finish_and_clear();
    run.map_err(Failure::other)?.map_err(Failure::other)
}

/// The first Ctrl-C lets the present sample end, the second one does not.
async fn listen(stop: watch::Sender<Stop>, bar: ProgressBar) {
    for how in [Stop::Soon, Stop::Now] {
        if tokio::signal::ctrl_c().await.is_err() {
            return;
        }
        // The run may have ended just now.
        let _ = stop.send(how);
        bar.suspend(|| output::say(format_args!("ending; what is done is kept")));
    }
    std::future::pending().await
}

/// What needs no server.
fn own() -> Result<Vec<Arc<dyn Subject>>, onelock_bench::subject::Failure> {
    Ok(vec![
        Arc::new(Ours::new(None, "memory://")?),
        #[cfg(feature = "sqlite")]
        Arc::new(Ours::temporary_sqlite()?),
        #[cfg(feature = "sqlite")]
        Arc::new(onelock_bench::baseline::sqlite::File::new()?),
    ])
}

/// The stores of these URLs, all of them checked and reached before anything begins.
async fn named(urls: &[String]) -> Result<Vec<Arc<dyn Subject>>, Failure> {
    let mut subjects: Vec<Ours> = Vec::new();
    for text in urls {
        let (label, url) = labelled(text);
        store::with(Some(url.to_owned()), async |_| Ok(())).await?;
        let subject = Ours::new(label, url)?;
        let called = subject.info().id.clone();
        if label.is_some() && subjects.iter().any(|other| other.info().id == called) {
            return Err(Failure::Usage(format!("two stores are called {called:?}")));
        }
        let alike = subjects.iter().filter(|other| other.info().store == called).count();
        subjects.push(match alike {
            0 => subject,
            _ => Ours::new(Some(&format!("{called} {}", alike + 1)), url)?,
        });
    }
    Ok(subjects.into_iter().map(|subject| Arc::new(subject) as Arc<dyn Subject>).collect())
}

/// `LABEL=URL`: the sign stands before the URL's scheme ends.
fn labelled(text: &str) -> (Option<&str>, &str) {
    match text.split_once('=') {
        Some((label, url)) if !label.contains(':') && !label.is_empty() => (Some(label), url),
        _ => (None, text),
    }
}

fn show(run: &Run) -> Result<(), Failure> {
    for table in report::terminal(run) {
        output::line(format_args!("\n{}", table.title))?;
        let head: Vec<_> = table.head.iter().map(|(name, _)| name.as_str()).collect();
        let rows = table.rows.into_iter().map(|row| row.into_iter().map(|cell| cell.text).collect());
        output::table(&head, rows)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stand_before_the_scheme() {
        assert_eq!(labelled("redis://h?ttl=3s"), (None, "redis://h?ttl=3s"));
        assert_eq!(labelled("fast=redis://h?ttl=3s"), (Some("fast"), "redis://h?ttl=3s"));
        assert_eq!(labelled("memory:x=y"), (None, "memory:x=y"));
        assert_eq!(labelled("=memory://"), (None, "=memory://"));
    }

    #[test]
    fn every_workload_is_in_the_help() {
        let help = workload_list();
        assert!(workload::all().iter().all(|workload| help.contains(workload.id)));
    }
}
