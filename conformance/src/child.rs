//! This program again, as a client in a process of its own.

use std::process::{ExitCode, Stdio};

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::process::{Child, ChildStdin, Command};

use crate::verdict::{Context as _, Verdict};

/// Serves when this process was started with an order in `variable`.
pub(crate) fn run_if_asked<T: DeserializeOwned>(
    variable: &str,
    serve: impl FnOnce(T) -> Verdict,
) -> Option<ExitCode> {
    let order = std::env::var(variable).ok()?;
    let served = || {
        // Also when it is stopped and cannot see that its input has ended.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        let told = std::panic::take_hook();
        // Nobody else sees the panic of a task; those on purpose come past this.
        std::panic::set_hook(Box::new(move |info| {
            told(info);
            std::process::exit(101);
        }));
        serve(serde_json::from_str(&order).context("the order of a client")?)
    };
    match served() {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("a client in a process of its own ends: {error}");
            Some(ExitCode::FAILURE)
        }
    }
}

/// Starts this program with an order in `variable`, and gives its input. Killed when dropped.
pub(crate) fn start(variable: &str, order: &impl Serialize, output: Stdio) -> Verdict<(Child, ChildStdin)> {
    let mut child = Command::new(std::env::current_exe()?)
        .env(variable, serde_json::to_string(order)?)
        .stdin(Stdio::piped())
        .stdout(output)
        .kill_on_drop(true)
        .spawn()
        .context("a client in a process of its own")?;
    let input = child.stdin.take().context("the client's input")?;
    Ok((child, input))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;

    const ORDER: &str = "ONELOCK_TEST_OF_A_CLIENT";

    /// The client is this test in a process of its own.
    #[test]
    fn a_panic_of_a_task_ends_its_client() {
        let panics = |()| {
            drop(std::thread::spawn(|| panic!("of a task")).join());
            Ok(())
        };
        if run_if_asked(ORDER, panics).is_some() {
            return;
        }
        let mut client = std::process::Command::new(std::env::current_exe().unwrap());
        let this = ["--exact", "child::tests::a_panic_of_a_task_ends_its_client"];
        let ended = client.args(this).env(ORDER, "null").output().unwrap();
        assert!(!ended.status.success(), "it went on: {ended:?}");
    }
}
