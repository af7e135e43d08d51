//! The shared suite on the memory store.

use std::process::ExitCode;

use lock_conformance::harness::memory::Memory;

fn main() -> ExitCode {
    lock_conformance::run(Memory::new())
}
