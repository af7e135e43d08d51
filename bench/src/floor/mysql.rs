//! The requests of a line, filled in or prepared as the store has them, on as many connections as a client of this library
//! has. Who waits is rung for by who is right ahead, as the store's waiters are; where the server has no such bells it looks
//! again and again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use onelock::HolderId;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow, MySqlSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, Row as _};
use tokio::sync::OwnedSemaphorePermit;

use super::mysql_text::{Prepared, Value, ask, filled, hexadecimal};
use super::pool::Pool;
use crate::networked::Way;
use crate::plain::{self, Plain};
use crate::subject::{Ask, Client, Failure, Lock, Need};

/// As many as a client of this library has unless told otherwise.
const CONNECTIONS: usize = 8;

const SESSION: &str = include_str!("../../../lock-sql/src/mysql/sql/session.sql");
const ACQUIRE: &str = include_str!("../../../lock-sql/src/mysql/sql/acquire.sql");
const BUSY: &str = include_str!("../../../lock-sql/src/mysql/sql/busy.sql");
const JOIN: &str = include_str!("../../../lock-sql/src/mysql/sql/join.sql");
const LEAVE: &str = include_str!("../../../lock-sql/src/mysql/sql/leave.sql");
const LEAVE_RING: &str = include_str!("../../../lock-sql/src/mysql/sql/leave_ring.sql");
const HEAR: &str = include_str!("../../../lock-sql/src/mysql/sql/hear.sql");
const LISTEN: &str = include_str!("../../../lock-sql/src/mysql/sql/listen.sql");
const GLANCE: &str = include_str!("../../../lock-sql/src/mysql/sql/glance.sql");
const LOOK: &str = include_str!("../../../lock-sql/src/mysql/sql/look_one.sql");

pub(super) struct Floor;

struct Shared {
    pool: Pool<MySqlConnection>,
    options: MySqlConnectOptions,
    /// Whether the server takes several statements as one block, which it answers once.
    blocks: bool,
    lease: String,
    /// Where the server takes blocks.
    prepared: Option<Often>,
}

/// What is asked most.
struct Often {
    /// Joins a known name.
    join: Prepared,
    /// Waits for a bell and looks: once, or for a while where nobody has that bell.
    hear: Prepared,
    listen: Prepared,
    /// Of who was refused and tries again: whether it is refused again.
    glance: Prepared,
    /// Gives back, without a bell and with one.
    leave: Prepared,
    leave_ring: Prepared,
}

/// What does not change from name to name.
const SAME: [(&str, &str); 4] =
    [(":mode", "x'78'"), (":room", "1"), (":note", "x'666c6f6f723a31'"), (":ahead", "COUNT(*)")];

/// A bell is waited for for 20 ms, and where nobody has it the request looks ten times in a millisecond.
const PATIENCE: [(&str, &str); 5] =
    [(":pause", "0"), (":limit", "20000"), (":again", "100"), (":looks", "10"), (":ahead", "COUNT(*) - 1")];

/// Who has more ahead looks without locking what it sees: so many that wait for each other are a circle to the server.
const LINE: i64 = 16;

struct Connections(Arc<Shared>);

#[async_trait]
impl Way for Floor {
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        let options = options(server);
        let lease = lease.as_micros().to_string();
        let pool = Pool::new(CONNECTIONS);
        let mut shared = Shared { pool, options, blocks: false, lease, prepared: None };
        let mut connection = shared.connect().await?;
        let version: String = ask(&mut connection, "SELECT VERSION()").await?.try_get(0)?;
        shared.blocks = version.contains("MariaDB");
        shared.pool.take_back(connection);
        if shared.blocks {
            let leases = [(":waiter_lease", &*shared.lease), (":lease", &shared.lease)];
            let join = Prepared::new(&shared.block(filled(&filled(JOIN, &leases), &SAME)));
            let (hear, listen) = (filled(HEAR, &PATIENCE), filled(LISTEN, &PATIENCE));
            shared.prepared = Some(Often {
                join,
                hear: Prepared::new(&hear),
                listen: Prepared::new(&listen),
                glance: Prepared::new(&filled(GLANCE, &SAME)),
                leave: Prepared::new(&filled(LEAVE, &[])),
                leave_ring: Prepared::new(&filled(LEAVE_RING, &[])),
            });
        }
        Ok(Arc::new(Connections(Arc::new(shared))))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        super::lacks_waiting(need)
    }
}

/// How to reach the server that was started for a run.
pub(super) fn options(server: SocketAddr) -> MySqlConnectOptions {
    MySqlConnectOptions::new()
        .host(&server.ip().to_string())
        .port(server.port())
        .username("root")
        .database("locks")
        .ssl_mode(MySqlSslMode::Disabled)
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .timezone(None)
        .set_names(false)
        .disable_statement_logging()
}

impl Shared {
    async fn connect(&self) -> Result<MySqlConnection, Failure> {
        let mut connection = self.options.connect().await?;
        connection.execute(sqlx::raw_sql(AssertSqlSafe(filled(SESSION, &[(":lock_wait", "1")])))).await?;
        Ok(connection)
    }

    async fn lend(&self) -> Result<(OwnedSemaphorePermit, MySqlConnection), Failure> {
        let (permit, free) = self.pool.lend().await?;
        match free {
            Some(connection) => Ok((permit, connection)),
            None => Ok((permit, self.connect().await?)),
        }
    }

    async fn request(&self, sql: &str) -> Result<MySqlRow, Failure> {
        let (_permit, mut connection) = self.lend().await?;
        let row = ask(&mut connection, sql).await?;
        self.pool.take_back(connection);
        Ok(row)
    }

    fn block(&self, sql: String) -> String {
        if self.blocks { format!("BEGIN NOT ATOMIC\n{sql}END") } else { sql }
    }
}

#[async_trait]
impl Client for Connections {
    fn prepare(&self, ask: &Ask<'_>) -> Result<Arc<dyn Lock>, Failure> {
        let shared = Arc::clone(&self.0);
        let name = hexadecimal(ask.name.as_bytes());
        // What does not change is filled in once.
        let values = [(":waiter_lease", &*shared.lease), (":lease", &shared.lease), (":name", &name)];
        let acquire = shared.block(filled(&filled(ACQUIRE, &values), &SAME));
        let join = shared.block(filled(&filled(JOIN, &values), &SAME));
        let busy = filled(BUSY, &[(":name", &name)]);
        let leave = filled(LEAVE, &[(":name", &name)]);
        let look = filled(LOOK, &[(":name", &name), (":pause", "1000")]);
        Ok(plain::lock(Name {
            shared,
            name: ask.name.to_owned(),
            acquire,
            join,
            busy,
            leave,
            look,
            known: AtomicBool::new(false),
            refused: AtomicBool::new(false),
        }))
    }

    async fn ping(&self) -> Result<bool, Failure> {
        self.0.request("SELECT 1").await?;
        Ok(true)
    }

    async fn close(&self) -> Result<(), Failure> {
        self.0.pool.close().await
    }
}

struct Name {
    shared: Arc<Shared>,
    name: String,
    acquire: String,
    /// The same once the name has its row.
    join: String,
    /// What only a try asks for.
    busy: String,
    leave: String,
    look: String,
    known: AtomicBool,
    /// Whether the last try was refused.
    refused: AtomicBool,
}

struct Kept {
    bytes: [u8; 16],
    /// The same as it stands in a text.
    holder: String,
    number: i64,
    /// The bell of who has waited, and the connection that has it.
    bell: Option<(String, OwnedSemaphorePermit, MySqlConnection)>,
}

impl Name {
    /// What is asked of the name for a holder.
    async fn ask(&self, request: &Prepared, holder: &[u8]) -> Result<MySqlRow, Failure> {
        let (_permit, mut connection) = self.shared.lend().await?;
        let values = [("name", Value::Bytes(self.name.as_bytes())), ("holder", Value::Bytes(holder))];
        let row = request.ask(&mut connection, &values).await?;
        self.shared.pool.take_back(connection);
        Ok(row)
    }

    fn bell(&self, number: i64) -> String {
        let name =
            self.name.bytes().fold(7_u64, |name, byte| name.wrapping_mul(31).wrapping_add(byte.into()));
        format!("floor/{name:x}/{number}")
    }

    /// Waits for the bell of who is right ahead, until nobody is.
    async fn listen(
        &self,
        often: &Often,
        holder: &[u8],
        number: i64,
        (mut ahead, mut behind): (i64, i64),
    ) -> Result<(String, OwnedSemaphorePermit, MySqlConnection), Failure> {
        let (permit, mut connection) = self.shared.lend().await?;
        let (own, mut missed) = (self.bell(number), false);
        loop {
            let before = self.bell(behind);
            let values = [
                ("name", Value::Bytes(self.name.as_bytes())),
                ("holder", Value::Bytes(holder)),
                ("number", Value::Int(number)),
                ("own", Value::Text(&own)),
                ("before", Value::Text(&before)),
                ("behind", Value::Int(behind)),
            ];
            let look = if ahead <= LINE && !missed { &often.hear } else { &often.listen };
            let row = look.ask(&mut connection, &values).await?;
            let _there: i64 = row.try_get::<Option<i64>, _>(0)?.ok_or("the entry has gone")?;
            match row.try_get::<Option<i64>, _>(3)? {
                Some(last) => {
                    let silence: i64 = row.try_get(4)?;
                    missed = silence == 0 && last == behind;
                    (ahead, behind) = (row.try_get(2)?, last);
                }
                None => return Ok((own, permit, connection)),
            }
        }
    }

    /// Looks every millisecond, until nobody is ahead.
    async fn look(&self, holder: &str, number: i64) -> Result<(), Failure> {
        let own = [(":holder", holder), (":number", &*number.to_string()), (":ahead", "COUNT(*) - 1")];
        let sql = filled(&self.look, &own);
        loop {
            let (_permit, mut connection) = self.shared.lend().await?;
            let rows = connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(&*sql))).await?;
            let row = rows.last().ok_or("no row")?;
            let there = row.try_get::<Option<i64>, _>(0)?.is_some();
            let ahead: i64 = row.try_get(2)?;
            self.shared.pool.take_back(connection);
            match (there, ahead) {
                (true, 0) => return Ok(()),
                (true, _) => {}
                (false, _) => return Err("the entry has gone".into()),
            }
        }
    }
}

impl Plain for Name {
    type Kept = Kept;

    async fn take(&self, wait: bool) -> Result<Option<Kept>, Failure> {
        let bytes = HolderId::random()?.as_u128().to_be_bytes();
        let (holder, known) = (hexadecimal(&bytes), self.known.load(Ordering::Relaxed));
        if !wait
            && self.refused.load(Ordering::Relaxed)
            && let Some(often) = &self.shared.prepared
        {
            let left: Option<i64> = self.ask(&often.glance, &bytes).await?.try_get(0)?;
            if left.is_some() {
                return Ok(None);
            }
        }
        let row = match &self.shared.prepared {
            Some(often) if wait && known => self.ask(&often.join, &bytes).await?,
            _ => {
                let (queue, busy) = if wait { ("1", "NULL") } else { ("0", &*self.busy) };
                let text = if wait && known { &self.join } else { &self.acquire };
                let sql = text.replace(":holder", &holder).replace(":queue", queue).replace(":busy", busy);
                self.shared.request(&sql).await?
            }
        };
        self.known.store(true, Ordering::Relaxed);
        let number = row.try_get::<Option<i64>, _>(0)?;
        self.refused.store(number.is_none(), Ordering::Relaxed);
        let Some(number) = number else { return Ok(None) };
        let (ahead, before): (i64, Option<i64>) = (row.try_get(3)?, row.try_get(4)?);
        let bell = match (&self.shared.prepared, before) {
            _ if ahead == 0 => None,
            (Some(often), Some(before)) => Some(self.listen(often, &bytes, number, (ahead, before)).await?),
            _ => {
                self.look(&holder, number).await?;
                None
            }
        };
        Ok(Some(Kept { bytes, holder, number, bell }))
    }

    async fn give_back(&self, kept: Kept) -> Result<(), Failure> {
        let Kept { bytes, holder, number, bell } = kept;
        let (own, _permit, mut connection) = match bell {
            Some((own, permit, connection)) => (Some(own), permit, connection),
            None => {
                let (permit, connection) = self.shared.lend().await?;
                (None, permit, connection)
            }
        };
        let gone = if let Some(often) = &self.shared.prepared {
            let leave = if own.is_some() { &often.leave_ring } else { &often.leave };
            let values = [
                ("name", Value::Bytes(self.name.as_bytes())),
                ("holder", Value::Bytes(&bytes)),
                ("number", Value::Int(number)),
                ("own", Value::Text(own.as_deref().unwrap_or_default())),
            ];
            leave.change(&mut connection, &values).await? == 1
        } else {
            let sql = self.leave.replace(":holder", &holder).replace(":number", &number.to_string());
            connection.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await?.rows_affected() == 1
        };
        self.shared.pool.take_back(connection);
        if gone { Ok(()) } else { Err("the lock was not held any more".into()) }
    }
}
