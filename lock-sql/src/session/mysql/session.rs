//! A session of the server: its connection, what it knows of its server, and the texts that every lock asks for.

use onelock_core::toolkit::Mutex;
use onelock_core::{Result, TokenEpoch};
use sqlx::FromRow;
use sqlx::mysql::{MySqlConnection, MySqlRow};

use super::words::ended;
use crate::mysql::MySqlConfig;
use crate::mysql::connect::{only_on_a_primary, send};
use crate::mysql::sql::{Value, fill};
use crate::unharmed::unharmed;

pub(super) const TAKE: &str = include_str!("sql/take.sql");
pub(super) const GIVE: &str = include_str!("sql/give.sql");
pub(super) const BEAT: &str = include_str!("sql/beat.sql");

#[derive(Debug)]
pub(super) struct MySql {
    pub(super) config: MySqlConfig,
    /// What this client last read about a life of its server, and is on that server's disk.
    pub(super) known: Mutex<Option<Life>>,
}

impl MySql {
    /// The rows that a request of the `sql/` folder gives, which is not prepared.
    pub(super) async fn rows<T: for<'r> FromRow<'r, MySqlRow>>(
        &self,
        conn: &mut MySqlConnection,
        text: &str,
        values: &[(&str, Value)],
    ) -> Result<Vec<T>> {
        let sql = only_on_a_primary() + &fill(text, &self.config.namespace, values);
        unharmed(send(conn, sql)).await.map_err(ended)?.all()
    }
}

/// A connection, and the session at its other end.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) conn: MySqlConnection,
    pub(super) id: i64,
    pub(super) life: Life,
}

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
