//! Work that no other may run beside.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::ensure_eq;
use crate::verdict::Verdict;

/// So many names may be worked on.
pub(super) const NAMES: usize = 10;

/// Work that must be alone: how many are inside, and how many times that was more than one.
#[derive(Debug, Default)]
pub(super) struct Alone([AtomicU32; NAMES], AtomicU32);

/// Somebody is inside until this is dropped.
pub(super) struct Inside<'a>(&'a Alone, Vec<usize>);

impl Alone {
    pub(super) fn enter(&self, which: Vec<usize>) -> Inside<'_> {
        for &i in &which {
            self.1.fetch_add(u32::from(self.0[i].fetch_add(1, Ordering::SeqCst) > 0), Ordering::SeqCst);
        }
        Inside(self, which)
    }

    pub(super) fn check(&self) -> Verdict {
        ensure_eq!(self.1.load(Ordering::SeqCst), 0, "works that were not alone");
        Ok(())
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        for &i in &self.1 {
            self.0.0[i].fetch_sub(1, Ordering::SeqCst);
        }
    }
}
