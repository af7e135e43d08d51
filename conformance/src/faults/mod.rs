//! Ways to lose, delay and spoil requests and replies between a client and its store.
//!
//! A [`Link`] is what a case holds in its hand. A store behind TCP puts a [`Proxy`] on it; a store inside this process a
//! [`Gate`] around its backend. A [`Node`] is a store behind a simulated network, late and lossy from a seed.

mod courier;
mod gate;
mod node;

pub use courier::Courier;
pub use gate::Gate;
pub use node::{Net, Node, Weather};
pub use onelock_testbed::relay::{Act, Fault, Link, Proxies, Proxy, Trigger};
