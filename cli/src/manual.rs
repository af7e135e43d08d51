//! `completions` and `man`: what a shell completes, and the manual's pages. Both are made from the command line itself.

use std::io::Write as _;
use std::path::PathBuf;

use clap::{CommandFactory as _, Parser};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::absent;
use crate::args::Args;
use crate::exit::{Exit, Failure, Outcome};

#[derive(Debug, Parser)]
pub(crate) struct ManArgs {
    /// The subcommand whose page to print; without it, the page of onelock.
    command: Option<String>,
    /// Write all pages into this folder: onelock.1, onelock-run.1 and so on.
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "onelock", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(Exit::OK)
}

pub(crate) fn man(args: &ManArgs) -> Outcome {
    let mut all = Args::command();
    if let Some(dir) = &args.dir {
        let written = clap_mangen::generate_to(all, dir);
        written.map_err(Failure::system(format!("cannot write to {}", dir.display())))?;
        return Ok(Exit::OK);
    }
    all.build();
    let page = match &args.command {
        None => all,
        Some(name) => all.find_subcommand(name).cloned().ok_or_else(|| {
            let unknown = || Failure::Usage("there is no such subcommand".into());
            absent::subcommand(name).unwrap_or_else(unknown)
        })?,
    };
    Man::new(page).render(&mut std::io::stdout().lock())?;
    Ok(Exit::OK)
}
