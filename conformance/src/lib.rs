//! The shared suite: one list of cases that every store must pass, with the servers, faults and checkers it needs.
//!
//! A store proves itself with a test file of a few lines and `harness = false` in its `Cargo.toml`:
//!
//! ```no_run
//! use onelock_conformance::{harness::memory::Memory, run};
//!
//! fn main() -> std::process::ExitCode {
//!     run(Memory::new())
//! }
//! ```
//!
//! Every case is listed on every store; one that does not apply prints as ignored, with the reason. A store declares
//! its capabilities in its harness, and a case compares the declaration with what the backend says, so none can vanish
//! quietly. `ONELOCK_VOLUME` (1 to 100, default 1) multiplies the volumes, `ONELOCK_SEED` replays random choices.
//!
//! | module | what it holds |
//! |---|---|
//! | [`harness`] | what a store tells the suite about itself |
//! | [`cases`] | the cases, one module per theme |
//! | [`case`] | the table of all cases and the contract clauses they prove |
//! | [`ctx`] | what a case works with |
//! | [`churn`] | clients at work while a test breaks the store under them |
//! | [`history`] | the checkers of histories: exclusion, tokens, order |
//! | [`fenced`] | a resource that checks fencing tokens, and its twin that does not |
//! | [`differential`] | random verbs on a store and on the executable specification |
//! | [`faults`] | a TCP proxy and a gate around a backend that lose requests and replies |
//! | [`power`], [`steps`] | what a power cut must not take, and what steps of a clock may cost |
//! | [`servers`] | real servers as child processes: the crate `onelock-testbed` |
//! | [`trial`] | clients in processes of their own at work while everything breaks, and what became of it |
//! | [`record`] | what a run leaves behind for machines to read |
//! | [`report`] | the same as a page for people |
//! | [`check`] | the suite against a server that somebody else runs |
//! | [`worker`] | a client in a process of its own, to be stopped or killed |
//! | [`wear`] | work of every kind for a client, and what its process has in use |
//! | [`runner`] | the test program |

mod aside;
pub mod case;
pub mod cases;
pub mod check;
mod child;
pub mod churn;
pub mod ctx;
pub mod differential;
pub mod faults;
pub mod fenced;
pub mod harness;
pub mod history;
pub mod power;
pub mod record;
pub mod report;
pub mod runner;
pub mod steps;
pub mod trial;
pub mod wear;
pub mod worker;

pub use case::{Case, Need};
pub use ctx::Ctx;
pub use harness::{Harness, Store};
pub use onelock_testbed::{Stop, Verdict, ensure, ensure_eq, expect, fail, rng, servers, verdict};
pub use runner::run;
