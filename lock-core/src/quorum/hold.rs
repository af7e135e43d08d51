//! What this client holds on which member.

use std::time::Duration;

use tokio::time::Instant;

use crate::backend::{Note, Request, Ticket};
use crate::error::Result;
use crate::token::FencingToken;

/// One successful attempt.
#[derive(Debug)]
pub(super) struct QuorumHold {
    /// What members are asked for that join later: for the lease that was asked for last, with the token in the note.
    pub(super) request: Request,
    pub(super) token: FencingToken,
    /// The entry on each member that has one, under that member's number.
    pub(super) entries: Vec<Option<Ticket>>,
    /// Members that are being asked for an entry again.
    pub(super) joining: Vec<bool>,
    /// When the members have ended its entries, unless it is renewed; `None` for as good as never.
    ends: Option<Instant>,
}

impl QuorumHold {
    pub(super) fn new(request: Request, token: FencingToken, entries: Vec<Option<Ticket>>) -> Self {
        let (joining, lease) = (vec![false; entries.len()], request.lease);
        let mut hold = Self { request, token, entries, joining, ends: Some(Instant::now()) };
        hold.lasts(lease);
        hold
    }

    /// Renewed, or new, for this lease. No member shortens a longer one that it gave before.
    pub(super) fn lasts(&mut self, lease: Duration) {
        self.request.lease = lease;
        // A member may give more than it was asked for.
        let ends = Instant::now().checked_add(lease.saturating_mul(2).saturating_add(self.request.delay));
        self.ends = self.ends.zip(ends).map(|(known, ends)| known.max(ends));
    }

    /// How long the members may keep its entries yet.
    pub(super) fn left(&self) -> Duration {
        self.ends.map_or(Duration::MAX, |ends| ends.saturating_duration_since(Instant::now()))
    }
}

/// Marks the entries of one attempt in the members' notes, so that people and [`super::inspect`] see what belongs
/// together. Random, and not the holder id: a reader can release nothing with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct GroupMark(u64);

const OPEN: &str = " [quorum ";

impl GroupMark {
    pub(super) fn random() -> Result<Self> {
        let high = crate::holder::HolderId::random()?.as_u128() >> 64;
        Ok(Self(u64::try_from(high).unwrap_or_default()))
    }

    /// The note with the mark, and with the token once it is known. What does not fit is cut from the user's text.
    pub(super) fn on(self, note: &Note, token: Option<FencingToken>) -> Result<Note> {
        let token = token.map(|token| format!(" {token}")).unwrap_or_default();
        let mark = format!("{OPEN}{:016x}{token}]", self.0);
        let mut end = note.as_str().len().min(Note::MAX_BYTES - mark.len());
        while !note.as_str().is_char_boundary(end) {
            end -= 1;
        }
        Note::new(format!("{}{mark}", &note.as_str()[..end]))
    }

    /// The mark of a note, the user's text and the token if it is known.
    pub(super) fn read(note: &str) -> Option<(Self, &str, Option<FencingToken>)> {
        let (text, mark) = note.strip_suffix(']')?.rsplit_once(OPEN)?;
        let (mark, token) = mark.split_once(' ').map_or((mark, None), |(mark, token)| (mark, Some(token)));
        let token = token.and_then(|token| FencingToken::new(token.parse().ok()?).ok());
        Some((Self(u64::from_str_radix(mark, 16).ok()?), text, token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_back_and_long_notes_are_cut() {
        let mark = GroupMark(0xfeed);
        let token = FencingToken::new(42).unwrap();
        for text in ["", "host a", "odd ] text [quorum 1]", &"ü".repeat(256)] {
            let note = Note::new(text).unwrap();
            for token in [None, Some(token)] {
                let marked = mark.on(&note, token).unwrap();
                let (read, kept, number) = GroupMark::read(marked.as_str()).unwrap();
                assert_eq!((read, number), (mark, token));
                assert!(text.starts_with(kept) && (kept == text || text.len() > 470), "{kept}");
            }
        }
        for foreign in ["", "]", "somebody's", " [quorum xyz]", "[quorum 1"] {
            assert_eq!(GroupMark::read(foreign), None, "{foreign}");
        }
    }
}
