//! What the client costs by itself, in instructions: on a busy machine they stay what they are. It runs itself under
//! `valgrind`, which must be installed, twice for each operation, once with more of it: what that takes more.
//!
//! `cargo bench -p onelock-core --bench instructions`

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a benchmark")]

mod ops;

use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use onelock_core::{Clock, Timestamp};

/// Set in the runs that are counted: which operation, and how often.
const ROLE: &str = "ONELOCK_INSTRUCTIONS";
const FEW: u64 = 200;
const MORE: u64 = 1_200;

/// What the boot clock asks the kernel for cannot be run under valgrind.
#[derive(Debug)]
struct Hours(Instant);

impl Clock for Hours {
    fn now(&self) -> Timestamp {
        Timestamp::from_origin(self.0.elapsed())
    }
}

fn main() {
    if let Ok(role) = std::env::var(ROLE) {
        let (name, times) = role.rsplit_once(' ').unwrap();
        let (_, operation) = ops::OPERATIONS.iter().find(|(other, _)| *other == name).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return operation(
            &mut ops::World::new(runtime, Arc::new(Hours(Instant::now()))),
            times.parse().unwrap(),
        );
    }
    for (name, _) in ops::OPERATIONS {
        let each = (counted(name, MORE) - counted(name, FEW)) / (MORE - FEW);
        println!("{name:32} {each:>8} instructions");
    }
}

/// The instructions of a whole run.
fn counted(name: &str, times: u64) -> u64 {
    let program = std::env::current_exe().unwrap();
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .env(ROLE, format!("{name} {times}"))
        .output()
        .unwrap_or_else(|error| panic!("valgrind is needed: {error}"));
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
    let collected =
        said.lines().find_map(|line| line.split_once("Collected : ")).unwrap_or_else(|| panic!("{said}"));
    collected.1.split_whitespace().next().unwrap().parse().unwrap()
}
