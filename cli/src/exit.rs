//! Exit codes, and the one error type that carries them.

use std::fmt::Display;
use std::process::ExitCode;

use onelock::{Error, ErrorKind};

use crate::{absent, output};

/// For the help of what shows and operates; `run` and its like have more.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    the answer is no: see above
  64   the command line, a name, a time or the store's URL cannot be used
  69   the store cannot be reached, or refused
  70   onelock itself failed
  141  the reader of the output went away";

/// How a subcommand ended.
pub(crate) type Outcome = Result<Exit, Failure>;

/// An exit code. The values are those of `sysexits.h` where one fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    pub(crate) const OK: Self = Self(0);
    /// The answer to what was asked is no.
    pub(crate) const NO: Self = Self(1);
    /// The command line, a name, a time or the store's URL cannot be used.
    pub(crate) const USAGE: Self = Self(64);
    /// The store cannot be reached, or refused.
    pub(crate) const STORE: Self = Self(69);
    /// Something in this program or the operating system failed.
    pub(crate) const INTERNAL: Self = Self(70);
    /// Busy, unless `--conflict-exit-code` says another.
    #[cfg(target_os = "linux")]
    pub(crate) const BUSY: Self = Self(75);
    /// The lock was lost.
    pub(crate) const LOST: Self = Self(76);
    /// The command cannot be executed; as shells say it.
    #[cfg(target_os = "linux")]
    pub(crate) const CANNOT_EXECUTE: Self = Self(126);
    /// The command was not found; as shells say it.
    #[cfg(target_os = "linux")]
    pub(crate) const NOT_FOUND: Self = Self(127);
    /// Whoever read our output went away; as if killed by SIGPIPE.
    pub(crate) const CLOSED_PIPE: Self = Self(141);

    /// As shells say that a signal killed.
    #[cfg(unix)]
    pub(crate) fn killed_by(signal: i32) -> Self {
        Self(u8::try_from(128 + signal).unwrap_or(u8::MAX))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.0)
    }
}

/// Why a subcommand could not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The store or the client says so.
    Lock(Error),
    /// Printing failed.
    Output(std::io::Error),
    /// What the user asked for cannot be.
    Usage(String),
    /// The operating system refused something this program needs.
    System(String),
    /// Something of the command may still run. The lock is not given back: this process must end without doing so.
    #[cfg(target_os = "linux")]
    Left,
}

impl Failure {
    /// For what the operating system refused: `what` cannot be done, and why.
    pub(crate) fn system<E: Display>(what: impl Display) -> impl FnOnce(E) -> Self {
        move |error| Self::System(format!("{what}: {error}"))
    }

    /// For what says all by itself.
    #[cfg(any(unix, feature = "bench", feature = "check"))]
    pub(crate) fn other(error: impl Display) -> Self {
        Self::System(error.to_string())
    }

    /// Says it on stderr, and gives the exit code.
    pub(crate) fn report(self) -> Exit {
        let (text, exit) = match self {
            Self::Lock(error) => {
                let lines = match error.missing_features() {
                    [] => with_causes(&error),
                    [feature, ..] => vec![format!("{error}: {}", absent::adding(feature))],
                };
                output::say_all("", &lines);
                return code_of(error.kind());
            }
            Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                return Exit::CLOSED_PIPE;
            }
            Self::Output(error) => (format!("cannot write: {error}"), Exit::INTERNAL),
            Self::Usage(text) => (text, Exit::USAGE),
            Self::System(text) => (text, Exit::INTERNAL),
            #[cfg(target_os = "linux")]
            Self::Left => ("the lock is left to its lease".into(), Exit::INTERNAL),
        };
        output::say(format_args!("{text}"));
        exit
    }
}

/// The error and the causes beneath it that its own text does not tell already.
fn with_causes(error: &dyn std::error::Error) -> Vec<String> {
    let mut lines = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(below) = cause {
        let text = below.to_string();
        if !lines.iter().any(|line| line.contains(&text)) {
            lines.push(format!("  because: {text}"));
        }
        cause = below.source();
    }
    lines
}

fn code_of(kind: ErrorKind) -> Exit {
    match kind {
        ErrorKind::InvalidName
        | ErrorKind::InvalidLease
        | ErrorKind::InvalidConfig
        | ErrorKind::Unsupported
        | ErrorKind::Misuse => Exit::USAGE,
        ErrorKind::Lost | ErrorKind::Evicted => Exit::LOST,
        _ => Exit::STORE,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Output(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_become_codes_as_in_shells() {
        assert_eq!(Exit::killed_by(15), Exit(143));
        assert_eq!(Exit::killed_by(9), Exit(137));
    }

    #[test]
    fn a_cause_is_told_once() {
        let error = |text: &str| Error::new(ErrorKind::Unavailable, text);
        let below = || std::io::Error::other("down");
        let told = with_causes(&error("no route (down)").caused_by(below()));
        assert_eq!(told, ["store unavailable: no route (down)"]);
        let told = with_causes(&error("no route").caused_by(error("refused: down").caused_by(below())));
        assert_eq!(told, ["store unavailable: no route", "  because: store unavailable: refused: down"]);
    }

    #[test]
    fn bad_input_and_a_bad_store_differ() {
        assert_eq!(code_of(ErrorKind::InvalidConfig), Exit::USAGE);
        assert_eq!(code_of(ErrorKind::Unavailable), Exit::STORE);
        assert_eq!(code_of(ErrorKind::Lost), Exit::LOST);
    }
}
