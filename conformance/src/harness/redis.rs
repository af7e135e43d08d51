//! A redis-server per case.
