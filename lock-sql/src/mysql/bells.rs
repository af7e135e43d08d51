//! Bells: who gives an entry back tells who waits right behind it, whichever client that is.
//!
//! A bell is a user lock of the server (`GET_LOCK`) with the name of an entry. The client that waits with the entry holds it,
//! on the connection of its looks, until the entry leaves; the client right behind waits for it at the server, in place of
//! a pause, and looks then. So one look is enough for each turn, and it comes at the right moment.
//!
//! It is a hint and no more: only the table says who holds. A bell that nobody holds, because its client did not wait, is an
//! older one or has lost its connection, is heard at once; then looks come after pauses, as without bells. One that is
//! never rung, because its entry has expired or was evicted, is waited for no longer than a pause.
//!
//! Only MariaDB waits for a user lock for less than a second.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use onelock_core::{FencingToken, Mode};
use sha2::{Digest as _, Sha256};

use super::look::Mark;

/// The server takes about thirty that wait for each other in a line for a circle.
const LINE: u32 = 16;

/// The bells of one client.
#[derive(Debug, Default)]
pub(super) struct Bells {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The entries whose bells this client holds.
    held: BTreeSet<(String, FencingToken)>,
    /// Of the one entry that waits alone.
    place: Option<Place>,
}

/// Behind whom an entry waits.
#[derive(Debug)]
struct Place {
    name: String,
    token: FencingToken,
    before: i64,
    /// How many have to leave before it holds.
    ahead: u32,
    /// Whether nobody held that bell when it was looked for.
    missed: bool,
}

/// What a look that waited for a bell has found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    /// Who is right ahead now.
    pub(super) before: Option<i64>,
    /// How many have to leave before the entry holds.
    pub(super) ahead: u32,
    /// Whether the bell was held by its client all the time.
    pub(super) silence: bool,
}

/// The bells of an entry and of the one right ahead of it, as the server knows them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) own: String,
    pub(super) before: String,
    /// The number of the one ahead.
    pub(super) behind: i64,
}

impl Bells {
    /// An entry has joined behind another.
    pub(super) fn joined(&self, name: &str, token: FencingToken, before: i64, ahead: u32) {
        self.lock().place = Some(Place { name: name.to_owned(), token, before, ahead, missed: false });
    }

    /// Whether it is known behind whom this entry waits: its looks wait for a bell. And whether they pause before that, because nobody
    /// held it the last time.
    pub(super) fn place(&self, mark: &Mark) -> Option<bool> {
        self.lock().of(mark).map(|place| place.missed)
    }

    /// The bells for such a look. The entry's own counts as held from now on.
    pub(super) fn pair(&self, space: &str, mark: &Mark) -> Option<Pair> {
        let mut state = self.lock();
        let behind = state.of(mark)?.before;
        state.held.insert((mark.name.clone(), mark.token));
        let line = line(space, &mark.name);
        Some(Pair { own: bell(&line, mark.token.get()), before: bell(&line, behind), behind })
    }

    /// What such a look has found.
    pub(super) fn heard(&self, mark: &Mark, heard: Heard) {
        let mut state = self.lock();
        if let (Some(place), Some(before)) = (state.of(mark), heard.before) {
            place.missed = !heard.silence && place.before == before;
            (place.before, place.ahead) = (before, heard.ahead);
        }
    }

    /// Whether one look is enough at that bell: somebody may hold it, and no circle or line of those that wait for bells is one that the
    /// server refuses.
    pub(super) fn once(&self, mark: &Mark) -> bool {
        let sure = self.lock().of(mark).is_some_and(|place| !place.missed && place.ahead <= LINE);
        sure && !self.holds_others(mark)
    }

    /// Whether this client holds the bells of others than this entry.
    pub(super) fn holds_others(&self, mark: &Mark) -> bool {
        self.lock().held.iter().any(|(name, token)| (name, *token) != (&mark.name, mark.token))
    }

    /// The bell of an entry that leaves, if this client holds it: the caller rings it.
    pub(super) fn take(&self, space: &str, name: &str, token: FencingToken) -> Option<String> {
        let held = self.lock().held.remove(&(name.to_owned(), token));
        held.then(|| bell(&line(space, name), token.get()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Readers and permits may hold together with the one ahead, which a bell does not tell.
    fn of(&mut self, mark: &Mark) -> Option<&mut Place> {
        let exclusive = mark.mode == Mode::Exclusive;
        self.place.as_mut().filter(|place| exclusive && place.token == mark.token && place.name == mark.name)
    }
}

/// What the bells of a line begin with. User locks belong to the whole server, so its tables are in it; 128 bits of a digest, because
/// a server takes 64 characters.
fn line(space: &str, name: &str) -> String {
    let mut hash = Sha256::new();
    // No byte of an encoded name or of a space is zero, so no two pairs are spelled alike.
    for part in ["onelock bell", space, name] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let digest: [u8; 32] = hash.finalize().into();
    hex::encode(&digest[..16])
}

fn bell(line: &str, number: i64) -> String {
    format!("onelock/{line}/{number}")
}

#[cfg(test)]
mod tests {
    use onelock_core::HolderId;

    use super::*;

    fn mark(name: &str, token: i64, mode: Mode) -> Mark {
        let token = FencingToken::new(token).unwrap();
        Mark { name: name.into(), token, holder: HolderId::from_u128(1), mode }
    }

    #[test]
    fn a_bell_has_room_at_the_server() {
        let name = "x".repeat(700);
        assert!(bell(&line("database.onelock_", &name), i64::MAX).len() <= 64);
    }

    #[test]
    fn bells_of_others_are_others() {
        let all: BTreeSet<_> =
            [("a", "b"), ("ab", ""), ("", "ab"), ("b", "a")].iter().map(|(s, n)| line(s, n)).collect();
        assert_eq!(all.len(), 4);
    }

    #[test]
    fn who_waits_exclusively_behind_another_listens() {
        let (bells, one) = (Bells::default(), mark("a", 7, Mode::Exclusive));
        assert_eq!(bells.pair("s", &one), None);
        bells.joined("a", one.token, 6, 1);
        let pair = bells.pair("s", &one).unwrap();
        let expected = Pair { own: bell(&line("s", "a"), 7), before: bell(&line("s", "a"), 6), behind: 6 };
        assert_eq!(pair, expected);
        for other in
            [mark("a", 8, Mode::Exclusive), mark("b", 7, Mode::Exclusive), mark("a", 7, Mode::Shared)]
        {
            assert_eq!(bells.place(&other), None, "{other:?}");
        }
        assert!(!bells.holds_others(&one));
        assert!(bells.holds_others(&mark("a", 8, Mode::Exclusive)));
        assert!(bells.once(&one));
        bells.joined("a", FencingToken::new(8).unwrap(), 7, 2);
        assert!(!bells.once(&mark("a", 8, Mode::Exclusive)), "it holds another bell");
        bells.joined("a", one.token, 6, LINE + 1);
        assert!(!bells.once(&one), "the server takes the line for a circle");
        assert_eq!(bells.take("s", "a", one.token), Some(pair.own));
        assert_eq!(bells.take("s", "a", one.token), None);
    }

    #[test]
    fn who_finds_nobody_at_the_bell_pauses_until_somebody_is() {
        let (bells, one) = (Bells::default(), mark("a", 7, Mode::Exclusive));
        bells.joined("a", one.token, 6, 1);
        let pauses = |before, silence| {
            bells.heard(&one, Heard { before, ahead: 1, silence });
            bells.place(&one).unwrap()
        };
        assert!(pauses(Some(6), false));
        assert!(!bells.once(&one));
        assert!(!pauses(Some(6), true));
        assert!(bells.once(&one));
        assert!(pauses(Some(6), false));
        // Somebody else is right ahead.
        assert!(!pauses(Some(5), false));
        assert!(pauses(Some(5), false));
        assert_eq!(bells.pair("s", &one).unwrap().behind, 5);
    }
}
