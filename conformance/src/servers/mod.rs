//! Real servers as child processes.
