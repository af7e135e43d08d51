//! The workloads that compare stores. There are none yet: what the client and a store cost by themselves is measured by
//! `cargo bench -p lock-core` and `cargo bench -p lock-redis`.
