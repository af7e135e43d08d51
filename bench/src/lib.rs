//! The workloads that compare stores, what the drivers do without us, and other libraries; and the report on them.
//!
//! - [`subject`]: what is measured, seen from a workload: a client, a lock taken, a lock given back
//! - [`ours`]: any store through this library
//! - [`baseline`]: two bare requests by each driver
//! - [`servers`]: the servers that this machine has
//! - [`networked`], [`plain`]: what baselines and other libraries share
//! - [`workload`]: what subjects are put to
//! - [`run`]: a run, from its plan to its data
//! - [`data`]: what a run leaves behind, as JSON
//! - [`measure`], [`trace`], [`tap`]: latencies and figures; fairness; round trips
//! - [`report`]: a page about it, tables, a comparison of two
//! - [`machine`]: where it ran

pub mod baseline;
pub mod data;
pub mod machine;
pub mod measure;
pub mod networked;
pub mod ours;
pub mod plain;
pub mod report;
pub mod run;
pub mod servers;
pub mod subject;
pub mod tap;
pub mod trace;
pub mod workload;
