//! Numbers that never go back, without a commit for each.
//!
//! `UUID_SHORT()` counts in the server's memory and belongs to nobody: a later call gets more, as long as the server lives.
//! The table keeps what was added to it in this life, and a ceiling: a number counts only when a ceiling above it is on the
//! disk, and a new life begins above the ceiling. A commit for a million numbers.
//!
//! The high bits of both are the token epoch. Who begins a larger one also takes the counter past the old ceiling: so who
//! knows only that has to ask the table, before it gives one more number, and is refused.

use std::time::{Duration, Instant};

use onelock_core::{Error, ErrorKind, Result, TokenEpoch};
use sqlx::mysql::MySqlConnection;
use sqlx::{Executor as _, SqlSafeStr as _};

use super::session::{BEAT, Conn, GIVE, Life, MySql, TAKE};
use super::words::ended;
use crate::mysql::connect::connect;
use crate::mysql::sql::Value;
use crate::session::dialect::Id;
use crate::session::names::life;
use crate::session::sessions::strange;
use crate::unharmed::unharmed;

/// How far the ceiling is raised at a time.
const BLOCK: i64 = 1 << 20;

/// For how many seconds a statement waits for rows and tables. The transactions here are short.
const LOCK_WAIT: i64 = 5;

/// How long a server may take to be up for a second. A life is known by the second in which it began, and so is its
/// counter: a life that gives numbers only later than that shares it with no other that does.
const YOUNG: Duration = Duration::from_secs(5);

impl MySql {
    /// A session of ours.
    pub(super) async fn session(&self) -> Result<(Conn, Id)> {
        let mut conn = connect(&self.config, LOCK_WAIT).await?;
        let end = Instant::now() + YOUNG;
        // By the client's clock: the server's `SLEEP` is by a clock that may be stepped.
        let (session, this) = loop {
            let set_up = self.rows(&mut conn, include_str!("sql/set_up.sql"), &[]).await?.pop();
            let (session, again, text, up): (_, i64, Vec<u8>, i64) = set_up.ok_or_else(strange)?;
            if session != again {
                return Err(strange());
            }
            // Below zero where the clock was stepped back behind the start.
            if up != 0 {
                break (session, life(&text));
            }
            if Instant::now() > end {
                let text = "the server says that it has been up for no second yet";
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        // What this client read before is on the disk, and it needs no commit. Another life may have taken over in between, and this
        // one begun again, so the table is asked.
        let known = *self.known.lock();
        let table = self.table(&mut conn, include_str!("sql/again.sql"), this, &[]).await?;
        let life = match (known, table) {
            (Some(known), Some(now))
                if (known.id, known.shift) == (this, now.shift) && known.ceiling <= now.ceiling =>
            {
                known
            }
            _ => {
                let begun = self.table(&mut conn, include_str!("sql/begin.sql"), this, &[]).await?;
                begun.ok_or_else(taken_over)?
            }
        };
        *self.known.lock() = Some(life);
        // What every lock asks for takes one round trip from the first time on.
        for sql in [TAKE, GIVE, BEAT] {
            unharmed(conn.prepare(sql.into_sql_str())).await.map_err(ended)?;
        }
        Ok((Conn { conn, id: session, life }, Id { process: session, born: life.id }))
    }

    /// What the table says of this life, unless it belongs to another. What these requests but `again.sql` answer is on the disk.
    async fn table(
        &self,
        conn: &mut MySqlConnection,
        text: &'static str,
        id: i64,
        values: &[(&str, Value)],
    ) -> Result<Option<Life>> {
        let values = [&[("life", Value::Int(id)), ("block", Value::Int(BLOCK))], values].concat();
        let row = self.rows(conn, text, &values).await?.pop();
        Ok(row.map(|(shift, ceiling)| Life { id, shift, ceiling }))
    }

    /// Sees to it that numbers are of this token epoch at least.
    pub(super) async fn begin_epoch(&self, conn: &mut Conn, epoch: TokenEpoch) -> Result<()> {
        let high = [("high", Value::Int(i64::from(u16::from(epoch)) << 48))];
        let begun = self.table(&mut conn.conn, include_str!("sql/epoch.sql"), conn.life.id, &high).await?;
        conn.life = begun.ok_or_else(taken_over)?;
        *self.known.lock() = Some(conn.life);
        Ok(())
    }

    /// Sees to it that a ceiling above `number` is on the disk.
    pub(super) async fn cover(&self, conn: &mut Conn, number: i64) -> Result<()> {
        let values = [("shift", Value::Int(conn.life.shift)), ("number", Value::Int(number))];
        let raised = self.table(&mut conn.conn, include_str!("sql/raise.sql"), conn.life.id, &values).await?;
        let now = raised.ok_or_else(taken_over)?;
        conn.life.epoch().check(now.epoch())?;
        if now.shift != conn.life.shift {
            return Err(taken_over());
        }
        if number >= now.ceiling {
            return Err(strange());
        }
        conn.life = now;
        *self.known.lock() = Some(now);
        Ok(())
    }
}

/// Another server counts, or has counted, and this one does not know.
fn taken_over() -> Error {
    Error::new(ErrorKind::Unavailable, "the table belongs to another server by now")
}
