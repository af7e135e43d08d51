//! A fault for one request out of many.

/// Lies in wait for one request.
#[derive(Clone, Debug)]
pub struct Trigger {
    /// What to look for in the stream of requests. A gate around a backend sees no bytes: it looks into the name of the
    /// verb (`acquire`, `renew`, `release`, …).
    pub pattern: Vec<u8>,
    /// Which match is meant: 1 is the first, counted over all connections of the link.
    pub nth: u64,
    /// What happens to it.
    pub act: Act,
}

/// What a [`Trigger`] does to its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The request, and what follows it on the connection, is held until [`Link::let_go`](super::Link::let_go).
    HoldRequest,
    /// The request goes through; all replies on its connection are held until [`Link::let_go`](super::Link::let_go).
    HoldReply,
    /// The request goes through; in place of the next reply on its connection comes a reset.
    LoseReply,
    /// The request is lost and its connection reset.
    Reset,
}

/// A trigger at work, or none.
#[derive(Debug, Default)]
pub(super) struct Trap {
    trigger: Option<Trigger>,
    matches: u64,
    struck: bool,
}

impl Trap {
    pub(super) fn new(trigger: Trigger) -> Self {
        Self { trigger: Some(trigger), matches: 0, struck: false }
    }

    pub(super) fn has_struck(&self) -> bool {
        self.struck
    }

    pub(super) fn memory(&self) -> usize {
        self.trigger.as_ref().map_or(0, |trigger| trigger.pattern.len().saturating_sub(1))
    }

    /// Counts the matches that end in `piece`; what to do when the one meant is among them.
    pub(super) fn springs(&mut self, seen: &[u8], piece: &[u8]) -> Option<Act> {
        let trigger = self.trigger.as_ref().filter(|_| !self.struck)?;
        let tail = &seen[seen.len().saturating_sub(self.memory())..];
        let stream = [tail, piece].concat();
        let length = trigger.pattern.len().max(1);
        let found = stream.windows(length).filter(|part| *part == trigger.pattern).count();
        self.matches += found as u64;
        self.struck = found > 0 && self.matches >= trigger.nth;
        self.struck.then_some(trigger.act)
    }
}
