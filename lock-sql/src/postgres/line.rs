//! What the server's answers mean.

use std::time::Duration;

use onelock_core::{EntryView, FencingToken, HolderId, Mode, Renewal, Result, Wake};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::error::explain;
use crate::value::{Found, duration, protocol};

/// The answer to an acquire.
pub(super) fn read_found(row: &PgRow, holder: HolderId, leases: (Duration, Duration)) -> Result<Found> {
    let read = || -> Result<(Vec<u8>, _, _), sqlx::Error> {
        Ok((row.try_get("whose")?, row.try_get("token")?, row.try_get("retry")?))
    };
    let (whose, token, retry) = read().map_err(explain)?;
    Found::new((&whose, token, retry), holder, leases)
}

/// The answers to a batch of renewals.
pub(super) fn read_all_found(row: &PgRow, due: &[&Renewal]) -> Result<Vec<Found>> {
    let read = || -> Result<(Vec<Vec<u8>>, Vec<_>, Vec<_>), sqlx::Error> {
        Ok((row.try_get("whose")?, row.try_get("tokens")?, row.try_get("retries")?))
    };
    let (whose, tokens, retries) = read().map_err(explain)?;
    if [whose.len(), tokens.len(), retries.len()] != [due.len(); 3] {
        return Err(protocol("not as many answers as renewals"));
    }
    let each = due.iter().zip(whose).zip(tokens.into_iter().zip(retries));
    each.map(|((due, whose), (token, retry))| {
        Found::new((&whose, token, retry), due.ticket.holder, (due.lease, due.waiter_lease))
    })
    .collect()
}

/// What a notification says, and a poll of one that holds. `h`, the holder and its number: it holds. `g` and the holder: it is gone.
pub(super) fn read_wake(payload: &str) -> Option<(HolderId, Wake)> {
    let (kind, rest) = payload.split_at_checked(1)?;
    let (holder, number) = rest.split_at_checked(32)?;
    let holder = HolderId::from_hex(holder)?;
    match kind {
        "h" => Some((holder, Wake::Held(FencingToken::new(number.parse().ok()?).ok()?))),
        "g" if number.is_empty() => Some((holder, Wake::Ask)),
        _ => None,
    }
}

pub(super) fn read_view(row: &PgRow) -> Result<EntryView> {
    let read = || -> Result<(i64, &str, String, i64, i64), sqlx::Error> {
        Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?, row.try_get(4)?))
    };
    let (token, mode, note, age, expires) = read().map_err(explain)?;
    let view = EntryView::new(FencingToken::new(token)?, mode.parse()?, note);
    Ok(view.age(duration(age)).expires_in(duration(expires)))
}

/// A name and the modes of its line.
pub(super) fn read_modes(row: &PgRow) -> Result<(String, Vec<Mode>)> {
    let modes: Vec<String> = row.try_get(1).map_err(explain)?;
    let modes = modes.iter().map(|mode| mode.parse()).collect::<Result<_>>()?;
    Ok((row.try_get(0).map_err(explain)?, modes))
}
