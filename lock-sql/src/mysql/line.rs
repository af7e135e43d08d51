//! What the answers of the server say about a line.

use std::time::Duration;

use onelock_core::{FencingToken, HolderId, Mode, Result};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use crate::listing::foreign;
use crate::value::{Found, protocol};

/// A row of whole numbers and byte strings.
pub(super) struct Cells<'a>(pub(super) &'a MySqlRow);

impl Cells<'_> {
    pub(super) fn maybe(&self, at: usize) -> Result<Option<i64>> {
        self.0.try_get(at).map_err(|e| protocol(&e.to_string()))
    }

    pub(super) fn int(&self, at: usize) -> Result<i64> {
        self.maybe(at)?.ok_or_else(|| protocol("a number is missing"))
    }

    pub(super) fn token(&self, at: usize) -> Result<FencingToken> {
        FencingToken::new(self.int(at)?)
    }

    pub(super) fn holder(&self, at: usize) -> Result<HolderId> {
        let bytes = self.bytes(at)?.try_into().map_err(|_| protocol("a holder of another length"))?;
        Ok(HolderId::from_u128(u128::from_be_bytes(bytes)))
    }

    pub(super) fn text(&self, at: usize) -> Result<String> {
        String::from_utf8(self.bytes(at)?).map_err(|_| foreign("a text that is not UTF-8"))
    }

    fn bytes(&self, at: usize) -> Result<Vec<u8>> {
        self.0.try_get(at).map_err(|e| protocol(&e.to_string()))
    }
}

/// Reads the number, the time left to the earliest lease end ahead, and for whom this is, from column `at` on.
pub(super) fn found(
    row: &Cells<'_>,
    at: usize,
    holder: HolderId,
    leases: (Duration, Duration),
) -> Result<Found> {
    Found::new((&row.bytes(at + 2)?, row.maybe(at)?, row.maybe(at + 1)?), holder, leases)
}

/// How much there is for entries of this kind, and how much of it this one takes.
pub(super) fn room_and_weight(mode: Mode) -> (i64, i64) {
    match mode {
        Mode::Exclusive => (1, 1),
        Mode::Shared => (u32::MAX.into(), 0),
        Mode::Permit { limit, weight } => (limit.get().into(), weight.get().into()),
    }
}
