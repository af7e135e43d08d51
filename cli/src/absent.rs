//! What this build leaves out: said by name, with the command that adds it.

use std::ffi::OsString;

use clap::Parser;

use crate::exit::Failure;

/// The arguments of a subcommand that is not in this build: any.
#[derive(Debug, Parser)]
pub(crate) struct Absent {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// The end of the help: which subcommands other builds have.
pub(crate) const HELP: Option<&str> = match (cfg!(feature = "bench"), cfg!(feature = "check")) {
    (true, true) => None,
    (false, true) => Some("Not in this build: bench (cargo install onelock-cli --features bench)"),
    (true, false) => Some("Not in this build: check (cargo install onelock-cli --features check)"),
    (false, false) => {
        Some("Not in this build: bench, check (cargo install onelock-cli --features bench,check)")
    }
};

impl Absent {
    /// Why `onelock NAME` does nothing. The feature has the name of the subcommand.
    pub(crate) fn refuse(self, name: &str) -> Failure {
        drop(self.words);
        Failure::Usage(format!("`onelock {name}` is not in this build: {}", adding(name)))
    }
}

/// How a cargo feature is added to the program.
pub(crate) fn adding(feature: &str) -> String {
    format!("cargo install onelock-cli --features {feature}")
}
