//! Numbers that never go back, without a commit for each.
//!
//! `UUID_SHORT()` counts in the server's memory and belongs to nobody: a later call gets more, as long as the server lives.
//! The table keeps what was added to it in this life, and a ceiling: a number counts only when a ceiling above it is on the
//! disk, and a new life begins above the ceiling. A commit for a million numbers.
//!
//! The high bits of both are the token epoch. A client that begins a larger one also takes the counter past the old
//! ceiling: so a client that knows only that one has to ask the table before it gives one more number, and is refused.

use onelock_core::{Error, ErrorKind, Result, TokenEpoch};

use super::session::{Conn, MySql, ended};
use crate::mysql::sql::Value;
use crate::value::protocol;

/// How far the ceiling is raised at a time.
const BLOCK: i64 = 1 << 20;

/// What a session knows of its server's life.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) id: i64,
    /// What is added to the server's counter.
    pub(super) shift: i64,
    /// Above all numbers that may be given; on the disk.
    pub(super) ceiling: i64,
}

impl Life {
    /// The token epoch of the numbers.
    pub(super) fn epoch(&self) -> TokenEpoch {
        TokenEpoch::of(self.ceiling)
    }
}

impl MySql {
    /// Sees to it that what the connection knows of its server's life is on the disk; `last` is the life that the table is of.
    pub(super) async fn begin(&self, conn: &mut Conn, last: i64) -> Result<()> {
        let now = conn.life;
        // What this client read before is on the disk, and it needs no commit. Another life may have taken over in between, and this
        // one begun again.
        let same = |old: &Life| {
            (old.id, old.id, old.shift) == (now.id, last, now.shift) && old.ceiling <= now.ceiling
        };
        let known = self.known.lock().filter(same);
        match known {
            Some(known) => conn.life = known,
            None => self.table(conn, include_str!("sql/begin.sql"), 0).await?,
        }
        *self.known.lock() = Some(conn.life);
        Ok(())
    }

    /// Sees to it that numbers are of this token epoch at least.
    pub(super) async fn begin_epoch(&self, conn: &mut Conn, epoch: TokenEpoch) -> Result<()> {
        let high = i64::from(u16::from(epoch)) << 48;
        self.table(conn, include_str!("sql/epoch.sql"), high).await
    }

    /// Sees to it that a ceiling above `number` is on the disk, unless a larger token epoch than this one has begun.
    pub(super) async fn cover(&self, conn: &mut Conn, number: i64, epoch: TokenEpoch) -> Result<()> {
        self.table(conn, include_str!("sql/raise.sql"), number).await?;
        epoch.check(conn.life.epoch())?;
        if number >= conn.life.ceiling {
            return Err(protocol("a ceiling that is not above the number"));
        }
        *self.known.lock() = Some(conn.life);
        Ok(())
    }

    /// Asks the table about the life of the connection's server, and keeps what it says, which is on the disk.
    async fn table(&self, conn: &mut Conn, text: &'static str, number: i64) -> Result<()> {
        let Life { id, shift, ceiling } = conn.life;
        let values =
            [("life", id), ("shift", shift), ("ceiling", ceiling), ("number", number), ("block", BLOCK)];
        let values = values.map(|(name, value)| (name, Value::Int(value)));
        let row = self.request(&mut conn.conn, text, &values).await.map_err(ended)?.all()?.pop();
        let (shift, ceiling) = row.ok_or_else(taken_over)?;
        conn.life = Life { id, shift, ceiling };
        Ok(())
    }
}

/// Another server counts, or has counted, and this one does not know.
fn taken_over() -> Error {
    Error::new(ErrorKind::Unavailable, "the table belongs to another server by now")
}
