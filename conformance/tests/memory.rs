//! The shared suite on the memory store.

use std::process::ExitCode;

use onelock_conformance::harness::memory::Memory;

fn main() -> ExitCode {
    onelock_conformance::run(Memory::new())
}
