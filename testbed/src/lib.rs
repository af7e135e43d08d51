//! What tests of a lock stand on: real servers as child processes, a relay between them and their clients, clocks that a
//! test steps and power that it cuts. Knows nothing of locks.
//!
//! | module | what it holds |
//! |---|---|
//! | [`servers`] | real servers as child processes, each on a free port and in a folder of its own |
//! | [`relay`] | a TCP proxy that loses, delays and spoils requests and replies |
//! | [`verdict`] | how a test ends |
//! | [`rng`] | random choices that a seed replays |

pub mod relay;
pub mod rng;
pub mod servers;
pub mod verdict;

pub use verdict::{Stop, Verdict};
