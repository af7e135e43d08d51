//! Listing names, the same in every store.

use onelock_core::mode::holders;
use onelock_core::{Error, ErrorKind, ListedName, Listing, LockName, Mode, Result};

pub(crate) fn foreign(text: &str) -> Error {
    Error::new(ErrorKind::Foreign, format!("the table of the lines holds {text}"))
}

/// A page of at most `limit` names, by the encoded names and the modes of their lines with spaces between; of one name more
/// where there are more.
pub(crate) fn listing(mut lines: Vec<(String, String)>, limit: usize) -> Result<Listing> {
    let more = lines.len() > limit;
    lines.truncate(limit);
    let next = lines.last().filter(|_| more).map(|(name, _)| name.clone());
    let listed = |(name, modes): (String, String)| {
        let name = LockName::decode(&name).ok_or_else(|| foreign("a name that is not one"))?;
        let modes = modes.split(' ').map(str::parse).collect::<Result<Vec<Mode>>>()?;
        let holders = holders(modes.iter().copied());
        Ok(ListedName::new(name, holders, modes.len() - holders))
    };
    Ok(Listing::new(lines.into_iter().map(listed).collect::<Result<_>>()?, next))
}

/// The encoded names that begin with `prefix`: from the first to below the second.
pub(crate) fn range(prefix: &str) -> (String, String) {
    let from = onelock_core::name::encode(prefix).into_owned();
    // Encoded names are of ASCII without this character.
    let until = format!("{from}\u{7F}");
    (from, until)
}
