//! What the shared suite sees of Redis: a server, or several that belong together.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

pub mod redis;
pub mod redis_group;
mod redis_inside;
pub mod rewriter;
pub mod servers;
