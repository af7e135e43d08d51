//! What the client may answer, in a page: five locks as anybody would write them down.

use std::time::Duration;

use onelock_core::{Mode, Timestamp};

/// What one of the five locks allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The modes that are asked for.
    pub(crate) modes: fn() -> Vec<Mode>,
    /// Whether those who ask say who they are, and may then enter again.
    pub(crate) reentrant: bool,
    /// Whether they write to a resource that looks at tokens.
    pub(crate) writes: bool,
    /// Whether one more may come in beside those who are in.
    pub(crate) fits: fn(&[Mode], Mode) -> bool,
}

/// One who has the lock does not get it twice, nor does anybody else.
pub(crate) const MUTEX: Rules = Rules {
    modes: || vec![Mode::Exclusive],
    reentrant: false,
    writes: false,
    fits: |inside, _| inside.is_empty(),
};

/// What is written under it is refused once a later holder has written, whether the writer knows of its loss or not.
pub(crate) const FENCED: Rules = Rules { writes: true, ..MUTEX };

/// The one who has it may enter again.
pub(crate) const REENTRANT: Rules = Rules { reentrant: true, ..MUTEX };

/// Three at most.
pub(crate) const SEMAPHORE: Rules = Rules {
    modes: || vec![Mode::permit(3).unwrap()],
    reentrant: false,
    writes: false,
    fits: |inside, _| inside.len() < 3,
};

/// Readers together, a writer alone; an owner that writes may read.
pub(crate) const READ_WRITE: Rules = Rules {
    modes: || vec![Mode::Shared, Mode::Shared, Mode::Exclusive],
    reentrant: true,
    writes: false,
    fits: |inside, mode| inside.is_empty() || (mode == Mode::Shared && !inside.contains(&Mode::Exclusive)),
};

/// One acquisition.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) who: usize,
    pub(crate) mode: Mode,
    pub(crate) token: i64,
    /// When it is lost on the client's clock.
    pub(crate) until: Timestamp,
    /// When its lease ends in the store.
    pub(crate) ends: Timestamp,
    /// How many guards it has.
    pub(crate) guards: usize,
    /// Its user may believe in it.
    pub(crate) alive: bool,
    /// The store has it: a lost hold stays until its last guard goes or its lease ends.
    pub(crate) stored: bool,
}

/// What is to come of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A new hold, after the one ahead has ended.
    Granted(Timestamp),
    /// The hold of this index once more.
    Entered(usize),
    Busy,
    WouldDeadlock,
}

#[derive(Debug)]
pub(crate) struct Model {
    rules: Rules,
    pub(crate) holds: Vec<Hold>,
    /// The largest token so far.
    pub(crate) token: i64,
    /// The latest hold under which something was written.
    written: usize,
}

impl Model {
    pub(crate) fn new(rules: Rules) -> Self {
        Self { rules, holds: Vec::new(), token: 0, written: 0 }
    }

    /// What has run out at `now` is over.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        for hold in &mut self.holds {
            hold.alive &= hold.until > now;
            hold.stored &= hold.ends > now;
        }
    }

    /// Whether something ends so close to `moment` that either answer would be right.
    pub(crate) fn is_close(&self, moment: Timestamp) -> bool {
        const CLOSE: Duration = Duration::from_millis(60);
        let is_close = |end: Timestamp| end + CLOSE > moment && end < moment + CLOSE;
        self.holds.iter().any(|hold| hold.alive && is_close(hold.until) || hold.stored && is_close(hold.ends))
    }

    /// Asks at `now`, ready to wait for `patience`; nobody else asks or leaves meanwhile.
    pub(crate) fn ask(&self, who: usize, mode: Mode, now: Timestamp, patience: Duration) -> Answer {
        let own = self.holds.iter().position(|hold| hold.alive && hold.who == who);
        if let Some(own) = own.filter(|_| self.rules.reentrant) {
            let enough = self.holds[own].mode == mode || self.holds[own].mode == Mode::Exclusive;
            return if enough { Answer::Entered(own) } else { Answer::WouldDeadlock };
        }
        let mut ends: Vec<_> = self.holds.iter().filter(|hold| hold.stored).map(|hold| hold.ends).collect();
        ends.push(now);
        ends.sort_unstable();
        let fits_at = |moment: &Timestamp| {
            let inside = self.holds.iter().filter(|hold| hold.stored && hold.ends > *moment);
            (self.rules.fits)(&inside.map(|hold| hold.mode).collect::<Vec<_>>(), mode)
        };
        let granted = ends.into_iter().filter(|end| *end >= now && *end <= now + patience).find(fits_at);
        granted.map_or(Answer::Busy, Answer::Granted)
    }

    /// Whether the resource takes what is written under this hold.
    pub(crate) fn write(&mut self, hold: usize) -> bool {
        self.written = self.written.max(hold);
        hold == self.written
    }

    /// A guard goes; whether that gives the lock back.
    pub(crate) fn leave(&mut self, hold: usize) -> bool {
        let hold = &mut self.holds[hold];
        hold.guards -= 1;
        let last = hold.guards == 0;
        hold.alive &= !last;
        hold.stored &= !last;
        last
    }
}
