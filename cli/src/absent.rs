//! What this build leaves out: said by name, with the command that adds it.

use clap::builder::{Resettable, StyledStr};
use clap::error::{ContextKind, ContextValue};

use crate::exit::Failure;

/// The subcommands that are features of the same name, and whether they are in this build.
const COMMANDS: [(&str, bool); 2] = [("bench", cfg!(feature = "bench")), ("check", cfg!(feature = "check"))];

/// The end of the help: which subcommands other builds have.
pub(crate) fn help() -> Resettable<StyledStr> {
    let absent: Vec<_> = COMMANDS.into_iter().filter(|(_, there)| !there).map(|(name, _)| name).collect();
    let text = format!("Not in this build: {} ({})", absent.join(", "), adding(&absent.join(",")));
    (!absent.is_empty()).then(|| text.into()).into()
}

/// Why there is no subcommand of this name, where another build has it.
pub(crate) fn subcommand(name: &str) -> Option<Failure> {
    let (name, _) = COMMANDS.into_iter().find(|(absent, there)| *absent == name && !there)?;
    Some(Failure::Usage(format!("`onelock {name}` is not in this build: {}", adding(name))))
}

/// The same, for a command line that clap refuses.
pub(crate) fn refused(error: &clap::Error) -> Option<Failure> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    subcommand(name)
}

/// How a cargo feature is added to the program.
pub(crate) fn adding(feature: &str) -> String {
    format!("cargo install onelock-cli --features {feature}")
}
