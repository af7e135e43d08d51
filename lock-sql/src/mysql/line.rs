//! What the answers of the server say about a line.

use std::time::Duration;

use onelock_core::{Busy, Error, ErrorKind, FencingToken, Grant, HolderId, Mode, Place, Result};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

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

/// What a join or a renewal says about the entry of one holder.
pub(super) enum Found {
    Held(Grant),
    Waiting(Place),
    Missing(Busy),
}

/// Reads the number, the time left to the earliest lease end ahead, and for whom this is, from column `at` on.
pub(super) fn found(
    row: &Cells<'_>,
    at: usize,
    holder: HolderId,
    (lease, waiter_lease): (Duration, Duration),
) -> Result<Found> {
    let holds = crate::whose::holds(&row.bytes(at + 2)?, holder)?;
    let retry_after = row.maybe(at + 1)?.map(duration);
    if row.maybe(at)?.is_none() {
        return Ok(Found::Missing(Busy { retry_after }));
    }
    let token = row.token(at)?;
    Ok(if holds {
        Found::Held(Grant { token, lease })
    } else {
        Found::Waiting(Place { token: Some(token), lease: waiter_lease, retry_after })
    })
}

pub(super) fn one(rows: &[MySqlRow]) -> Result<Cells<'_>> {
    match rows {
        [row] => Ok(Cells(row)),
        _ => Err(protocol(&format!("{} rows instead of one", rows.len()))),
    }
}

/// How much there is for entries of this kind, and how much of it this one takes.
pub(super) fn room_and_weight(mode: Mode) -> (i64, i64) {
    match mode {
        Mode::Exclusive => (1, 1),
        Mode::Shared => (u32::MAX.into(), 0),
        Mode::Permit { limit, weight } => (limit.get().into(), weight.get().into()),
    }
}

/// A lease as the store keeps it, in whole microseconds, never shorter than asked.
pub(super) fn micros(lease: Duration, delay: Duration) -> i64 {
    let nanos = lease.saturating_add(delay).as_nanos();
    // Above that, sums on the server would overflow; the core allows far less.
    i64::try_from(nanos.div_ceil(1000)).unwrap_or(i64::MAX).min(1 << 60)
}

pub(super) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(super) fn protocol(text: &str) -> Error {
    Error::new(ErrorKind::Protocol, text)
}

pub(super) fn foreign(text: &str) -> Error {
    Error::new(ErrorKind::Foreign, format!("the table of the lines holds {text}"))
}
