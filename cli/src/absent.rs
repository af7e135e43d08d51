//! What this build leaves out: said by name, with the command that adds it.

use clap::error::{ContextKind, ContextValue};

use crate::exit::Failure;

/// The subcommands that are features of the same name, and whether they are in this build.
const COMMANDS: [(&str, bool); 2] = [("bench", cfg!(feature = "bench")), ("check", cfg!(feature = "check"))];

/// The end of the help: which subcommands other builds have.
pub(crate) const HELP: Option<&str> = match (cfg!(feature = "bench"), cfg!(feature = "check")) {
    (true, true) => None,
    (false, true) => Some("Not in this build: bench (cargo install onelock-cli --features bench)"),
    (true, false) => Some("Not in this build: check (cargo install onelock-cli --features check)"),
    (false, false) => {
        Some("Not in this build: bench, check (cargo install onelock-cli --features bench,check)")
    }
};

/// Why there is no subcommand of this name, where another build has it.
pub(crate) fn subcommand(name: &str) -> Option<Failure> {
    let (name, _) = COMMANDS.into_iter().find(|(absent, there)| *absent == name && !there)?;
    Some(Failure::Usage(format!("`onelock {name}` is not in this build: {}", adding(name))))
}

/// The same, for a command line that clap refuses.
pub(crate) fn refused(error: &clap::Error) -> Option<Failure> {
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name)) => subcommand(name),
        _ => None,
    }
}

/// How a cargo feature is added to the program.
pub(crate) fn adding(feature: &str) -> String {
    format!("cargo install onelock-cli --features {feature}")
}
