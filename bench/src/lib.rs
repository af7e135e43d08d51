//! The workloads that compare stores, what the drivers do without us, and other libraries; and the report on them.
//!
//! - [`subject`]: what is measured, seen from a workload: a client, a lock taken, a lock given back
//! - [`data`]: what a run leaves behind, as JSON
//! - [`tap`]: counts round trips, whatever the store speaks

pub mod data;
pub mod subject;
pub mod tap;
