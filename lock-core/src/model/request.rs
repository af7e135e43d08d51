//! What the verbs of a store are asked, and what they answer.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::error::{Error, ErrorKind, Result};
use crate::model::holder::HolderId;
use crate::model::mode::Mode;
use crate::model::name::LockName;
use crate::model::token::{FencingToken, TokenEpoch};

/// What an acquisition asks for.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use]
pub struct Request {
    /// The name of the lock.
    pub name: LockName,
    /// Whose entry it will be: a fresh id for every acquisition.
    pub holder: HolderId,
    /// How it shares the lock.
    pub mode: Mode,
    /// The lease once it holds.
    pub lease: Duration,
    /// The lease while it waits.
    pub waiter_lease: Duration,
    /// The lock-delay: how much longer than the lease the store keeps the entry.
    pub delay: Duration,
    /// Whether it may wait in the line; if not it joins only to hold at once. A store without
    /// [`fifo`](crate::Capabilities::fifo) has no line to wait in: it answers as if this were off.
    pub queue: bool,
    /// The holder's label for people.
    pub note: Note,
    /// The client's token epoch; smaller than the largest that has joined here, the request is refused (C4).
    pub epoch: TokenEpoch,
}

impl Request {
    /// Asks for `name`, to hold for `lease` and to wait as long: in the line, with no lock-delay, no note and the first epoch.
    ///
    /// ```
    /// use std::time::Duration;
    /// use onelock_core::{HolderId, Request};
    /// use onelock_core::{LockName, Mode};
    ///
    /// let name = LockName::new("orders/42")?;
    /// let request = Request::new(name, HolderId::random()?, Mode::Exclusive, Duration::from_secs(30));
    /// let a_try = request.clone().queue(false);
    /// # assert!(request.queue && !a_try.queue);
    /// # Ok::<_, onelock_core::Error>(())
    /// ```
    pub fn new(name: LockName, holder: HolderId, mode: Mode, lease: Duration) -> Self {
        let (delay, note, epoch) = (Duration::ZERO, Note::default(), TokenEpoch::default());
        Self { name, holder, mode, lease, waiter_lease: lease, delay, queue: true, note, epoch }
    }

    /// With this lease once it holds.
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    /// With this lease while it waits.
    pub fn waiter_lease(self, waiter_lease: Duration) -> Self {
        Self { waiter_lease, ..self }
    }

    /// With this lock-delay.
    pub fn delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Waits in the line, or not.
    pub fn queue(self, queue: bool) -> Self {
        Self { queue, ..self }
    }

    /// With this label for people.
    pub fn note(self, note: Note) -> Self {
        Self { note, ..self }
    }

    /// Of this epoch.
    pub fn epoch(self, epoch: TokenEpoch) -> Self {
        Self { epoch, ..self }
    }

    /// The ticket of the entry this request makes, before its number is known.
    pub fn ticket(&self) -> Ticket {
        Ticket::new(self.name.clone(), self.holder, self.mode).delay(self.delay)
    }
}

/// The store's answer to [`Backend::acquire`](crate::Backend::acquire).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The entry holds.
    Held(Grant),
    /// The entry stands in the line.
    Waiting(Place),
    /// There is no entry: it would not have held at once.
    Busy(Busy),
}

/// Whether there may be an entry behind this answer, to be given back.
pub(crate) fn may_have_joined(answer: &Result<Standing>) -> bool {
    match answer {
        Ok(Standing::Busy(_)) => false,
        Ok(_) => true,
        Err(error) => error.is_unclear(),
    }
}

/// An entry that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Its number.
    pub token: FencingToken,
    /// The lease the store gave, without the lock-delay: at least what was asked.
    pub lease: Duration,
}

impl Grant {
    /// The entry `token` holds for `lease`.
    #[must_use]
    pub const fn new(token: FencingToken, lease: Duration) -> Self {
        Self { token, lease }
    }
}

/// An entry that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// Its number; it stays the same when it holds. `None` where the server's own queue is the line: the number comes with
    /// the grant.
    pub token: Option<FencingToken>,
    /// The lease the store gave, without the lock-delay.
    pub lease: Duration,
    /// For the first waiter only: when the earliest lease ahead ends, from now. Nobody else needs to ask then.
    pub retry_after: Option<Duration>,
}

impl Place {
    /// The entry `token`, if it has a number already, waits with this lease, behind others that wait.
    #[must_use]
    pub fn new(token: impl Into<Option<FencingToken>>, lease: Duration) -> Self {
        Self { token: token.into(), lease, retry_after: None }
    }

    /// It is the first waiter; the earliest lease ahead ends after this time, if that is known.
    #[must_use]
    pub const fn retry_after(self, retry_after: Option<Duration>) -> Self {
        Self { retry_after, ..self }
    }
}

/// No entry was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// When the earliest lease ahead ends, from now, if the store knows.
    pub retry_after: Option<Duration>,
}

impl Busy {
    /// The earliest lease ahead ends after this time, if that is known.
    #[must_use]
    pub const fn new(retry_after: Option<Duration>) -> Self {
        Self { retry_after }
    }
}

/// Names one entry for the verbs that follow.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Ticket {
    /// The name of the lock.
    pub name: LockName,
    /// Whose entry it is.
    pub holder: HolderId,
    /// How it shares the lock.
    pub mode: Mode,
    /// The lock-delay.
    pub delay: Duration,
    /// Its number; `None` when the answer to the acquire never came, and until the grant where that brings the number.
    pub token: Option<FencingToken>,
}

impl Ticket {
    /// The entry of `holder`, of which no number is known, with no lock-delay.
    pub fn new(name: LockName, holder: HolderId, mode: Mode) -> Self {
        Self { name, holder, mode, delay: Duration::ZERO, token: None }
    }

    /// With this lock-delay.
    pub fn delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// With this number.
    pub fn token(self, token: impl Into<Option<FencingToken>>) -> Self {
        Self { token: token.into(), ..self }
    }
}

/// One entry to renew.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Renewal {
    /// The entry.
    pub ticket: Ticket,
    /// The lease if it holds.
    pub lease: Duration,
    /// The lease if it still waits.
    pub waiter_lease: Duration,
}

impl Renewal {
    /// Renews an entry for `lease` if it holds, for `waiter_lease` if it still waits.
    #[must_use]
    pub fn new(ticket: Ticket, lease: Duration, waiter_lease: Duration) -> Self {
        Self { ticket, lease, waiter_lease }
    }
}

/// The store's answer to one [`Renewal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The entry holds, with a renewed lease.
    Held(Grant),
    /// The entry waits, with a renewed lease.
    Waiting(Place),
    /// There is no such entry any more.
    NotHeld,
}

/// Why a [`Backend::wait`](crate::Backend::wait) ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Asking again may help.
    Ask,
    /// The store says that the entry with this number holds now. It moves no lease. Where [`Place::token`] was `None` this
    /// is the entry's number from now on.
    Held(FencingToken),
}

/// The store's answer to a release or an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The entry was there and is gone.
    Released,
    /// There was no such entry.
    NotHeld,
}

/// The store's answer to [`Backend::raise`](crate::Backend::raise).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raise {
    /// The entry is ours and the counter is at least the given token.
    Raised,
    /// There is no such entry; nothing changed.
    NotHeld,
}

/// A label for people: host, process, free text. At most 512 bytes, no control characters. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Note(Option<Arc<str>>);

impl Note {
    /// The longest note, in bytes of UTF-8.
    pub const MAX_BYTES: usize = 512;

    /// Checks `text`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] when it is too long or holds a control character.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        if text.len() > Self::MAX_BYTES {
            let text = format!("a note has at most {} bytes, this one has {}", Self::MAX_BYTES, text.len());
            return Err(Error::new(ErrorKind::InvalidName, text));
        }
        if text.chars().any(char::is_control) {
            return Err(Error::new(ErrorKind::InvalidName, "a note has no control characters"));
        }
        Ok(Self((!text.is_empty()).then(|| text.into())))
    }

    /// The text; empty for no note.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl TryFrom<String> for Note {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Self::new(text)
    }
}

impl From<Note> for String {
    fn from(note: Note) -> Self {
        note.as_str().to_owned()
    }
}
