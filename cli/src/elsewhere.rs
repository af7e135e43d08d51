//! `run`, `elect` and `wait` where the system is not Linux: they are not built there yet.

use std::ffi::OsString;

use clap::Parser;

use crate::exit::{Failure, Outcome};

/// What they would be given.
#[derive(Debug, Parser)]
pub(crate) struct RunArgs {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _words: Vec<OsString>,
}

pub(crate) async fn run(_: Option<String>, _: RunArgs) -> Outcome {
    Err(refused("run"))
}

fn refused(command: &str) -> Failure {
    let rest = "the library locks on this system, and the commands that show and operate work";
    Failure::Usage(format!("`onelock {command}` runs on Linux only, so far; {rest}"))
}

pub(crate) mod elect {
    pub(crate) use super::RunArgs as ElectArgs;

    pub(crate) async fn elect(_: Option<String>, _: ElectArgs) -> super::Outcome {
        Err(super::refused("elect"))
    }
}

pub(crate) mod wait {
    pub(crate) use super::RunArgs as WaitArgs;

    pub(crate) async fn wait(_: Option<String>, _: WaitArgs) -> super::Outcome {
        Err(super::refused("wait"))
    }
}
