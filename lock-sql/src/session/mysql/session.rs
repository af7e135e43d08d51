//! A session of the server: how it is made, what it is sent, and what its end means.

use std::time::{Duration, Instant};

use onelock_core::toolkit::Mutex;
use onelock_core::{Error, ErrorKind, Result};
use sqlx::mysql::MySqlConnection;
use sqlx::{Executor as _, SqlSafeStr as _};

use super::life::Life;
use crate::mysql::MySqlConfig;
use crate::mysql::connect::{Sent, connect, only_on_a_primary, send};
use crate::mysql::error::{explain, number};
use crate::mysql::sql::{Value, fill};
use crate::session::dialect::Id;
use crate::session::names::life;
use crate::session::sessions::lost;
use crate::unharmed::unharmed;
use crate::value::protocol;

/// What every lock asks for.
pub(super) const TAKE: &str = include_str!("sql/take.sql");
pub(super) const GIVE: &str = include_str!("sql/give.sql");
pub(super) const BEAT: &str = include_str!("sql/beat.sql");

/// For how many seconds a statement waits for rows and tables. The transactions here are short.
const LOCK_WAIT: i64 = 5;

/// How long a server may take to be up for a second. A life is known by the second in which it began, and so is its
/// counter: a life that gives numbers only later than that shares it with no other that does.
const YOUNG: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct MySql {
    pub(super) config: MySqlConfig,
    /// What this client last read about a life of its server, and is on that server's disk.
    pub(super) known: Mutex<Option<Life>>,
}

/// A connection, and what is known of the life of the server at its other end.
pub(super) struct Conn {
    pub(super) conn: MySqlConnection,
    pub(super) life: Life,
}

impl MySql {
    /// A session of ours.
    pub(super) async fn session(&self) -> Result<(Conn, Id)> {
        let mut conn = connect(&self.config, LOCK_WAIT).await?;
        let end = Instant::now() + YOUNG;
        // By the client's clock: the server's `SLEEP` is by a clock that may be stepped.
        let (process, last, now) = loop {
            let set_up = self.request(&mut conn, include_str!("sql/set_up.sql"), &[]).await.map_err(ended)?;
            let (session, again, text, up, last, shift, ceiling): (_, i64, Vec<u8>, i64, _, _, _) =
                set_up.one()?;
            if session != again {
                return Err(protocol("two ids of one session"));
            }
            // Below zero where the clock was stepped back behind the start.
            if up != 0 {
                break (session, last, Life { id: life(&text), shift, ceiling });
            }
            if Instant::now() > end {
                let text = "the server says that it has been up for no second yet";
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let mut conn = Conn { conn, life: now };
        self.begin(&mut conn, last).await?;
        // What every lock asks for takes one round trip from the first time on.
        for sql in [TAKE, GIVE, BEAT] {
            unharmed(conn.conn.prepare(sql.into_sql_str())).await.map_err(ended)?;
        }
        Ok((conn, Id { process, born: now.id }))
    }

    /// Sends a request of the `sql/` folder, which is not prepared.
    pub(super) async fn request(
        &self,
        conn: &mut MySqlConnection,
        text: &str,
        values: &[(&str, Value)],
    ) -> Sent {
        unharmed(send(conn, only_on_a_primary() + &fill(text, &self.config.namespace, values))).await
    }
}

/// What an error says of the session.
pub(super) fn ended(error: sqlx::Error) -> Error {
    // By somebody's order, for having been idle, with the server.
    if matches!(number(&error), Some(1053 | 1927 | 3169 | 4031)) { lost(error) } else { explain(error) }
}
