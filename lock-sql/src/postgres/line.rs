//! What the server's answers mean.

use std::time::Duration;

use onelock_core::{
    EntryView, Error, ErrorKind, FencingToken, HolderId, ListedName, LockName, Mode, Release, Result,
};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::error::explain;
use crate::whose;

/// Where an entry stands.
pub(super) enum State {
    Held(FencingToken),
    Waiting(FencingToken, Option<Duration>),
    None(Option<Duration>),
}

/// The answer to an acquire.
pub(super) fn read_state(row: &PgRow, holder: HolderId) -> Result<State> {
    let token = row.try_get("token").map_err(explain)?;
    let retry = row.try_get("retry").map_err(explain)?;
    let whose: Vec<u8> = row.try_get("whose").map_err(explain)?;
    State::new(&whose, holder, token, retry)
}

/// The answers to a batch of renewals.
pub(super) fn read_states(row: &PgRow, holders: &[HolderId]) -> Result<Vec<State>> {
    let tokens: Vec<Option<i64>> = row.try_get("tokens").map_err(explain)?;
    let retries: Vec<Option<i64>> = row.try_get("retries").map_err(explain)?;
    let whose: Vec<Vec<u8>> = row.try_get("whose").map_err(explain)?;
    if [tokens.len(), retries.len(), whose.len()] != [holders.len(); 3] {
        return Err(Error::new(ErrorKind::Protocol, "not as many answers as renewals"));
    }
    let each = whose.iter().zip(holders).zip(tokens.into_iter().zip(retries));
    each.map(|((whose, holder), (token, retry))| State::new(whose, *holder, token, retry)).collect()
}

impl State {
    fn new(whose: &[u8], holder: HolderId, token: Option<i64>, retry: Option<i64>) -> Result<Self> {
        let (holds, retry) = (whose::holds(whose, holder)?, retry.map(span));
        match (holds, token) {
            (true, Some(token)) => Ok(Self::Held(FencingToken::new(token)?)),
            (false, Some(token)) => Ok(Self::Waiting(FencingToken::new(token)?, retry)),
            (false, None) => Ok(Self::None(retry)),
            (true, None) => Err(Error::new(ErrorKind::Protocol, "a grant without a number")),
        }
    }
}

pub(super) fn read_release(row: &PgRow) -> Result<Release> {
    let released: bool = row.try_get(0).map_err(explain)?;
    Ok(if released { Release::Released } else { Release::NotHeld })
}

pub(super) fn read_view(row: &PgRow) -> Result<EntryView> {
    let read = || -> Result<(i64, &str, String, i64, i64), sqlx::Error> {
        Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?, row.try_get(4)?))
    };
    let (token, mode, note, age, expires) = read().map_err(explain)?;
    let view = EntryView::new(FencingToken::new(token)?, mode.parse()?, note);
    Ok(view.age(span(age)).expires_in(span(expires)))
}

pub(super) fn read_listed(row: &PgRow) -> Result<ListedName> {
    let encoded: &str = row.try_get(0).map_err(explain)?;
    let modes: Vec<String> = row.try_get(1).map_err(explain)?;
    let modes = modes.iter().map(|mode| mode.parse()).collect::<Result<Vec<Mode>>>()?;
    let holders = onelock_core::mode::holders(modes.iter().copied());
    let name = LockName::decode(encoded)
        .ok_or_else(|| Error::new(ErrorKind::Foreign, "the table holds a name that is none"))?;
    Ok(ListedName::new(name, holders, modes.len() - holders))
}

fn span(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
