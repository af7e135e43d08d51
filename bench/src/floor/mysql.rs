//! The requests of a line, filled in as the store does, on as many connections as a client of this library has.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use onelock::HolderId;
use sqlx::mysql::{MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlRow, MySqlSslMode};
use sqlx::{Arguments as _, AssertSqlSafe, ConnectOptions as _, Executor as _, Row as _};

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

pub(super) struct Floor;

struct Shared {
    pool: Pool<MySqlConnection>,
    options: MySqlConnectOptions,
    /// Whether the server takes several statements as one block, which it answers once.
    blocks: bool,
    lease: String,
    /// What joins a known name, where blocks are prepared, with marks for these values.
    join: Option<(Arc<str>, Vec<Mark>)>,
}

#[derive(Clone, Copy)]
enum Mark {
    Name,
    Holder,
}

/// What does not change from name to name.
const SAME: [(&str, &str); 4] =
    [(":mode", "x'78'"), (":room", "1"), (":note", "x'666c6f6f723a31'"), (":ahead", "COUNT(*)")];

struct Connections(Arc<Shared>);

#[async_trait]
impl Way for Floor {
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        let options = options(server);
        let lease = lease.as_micros().to_string();
        let mut shared = Shared { pool: Pool::new(CONNECTIONS), options, blocks: false, lease, join: None };
        let mut connection = shared.connect().await?;
        let version: String = ask(&mut connection, "SELECT VERSION()").await?.try_get(0)?;
        shared.blocks = version.contains("MariaDB");
        shared.pool.take_back(connection);
        if shared.blocks {
            let leases = [(":waiter_lease", &*shared.lease), (":lease", &shared.lease)];
            let (sql, marks) = marked(&shared.block(filled(&filled(JOIN, &leases), &SAME)));
            shared.join = Some((sql.into(), marks));
        }
        Ok(Arc::new(Connections(Arc::new(shared))))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        super::lacks(need)
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

pub(super) async fn ask(connection: &mut MySqlConnection, sql: &str) -> Result<MySqlRow, Failure> {
    let rows = connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
    Ok(rows.into_iter().next().ok_or("no row")?)
}

/// A request without its comments, and with these values in it. The longest names come first.
pub(super) fn filled(text: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(2048);
    for line in text.lines().filter(|line| !line.starts_with("--")) {
        out.push_str(line.trim_start());
        out.push('\n');
    }
    values.iter().fold(out, |text, (name, value)| text.replace(name, value))
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = "x'".to_owned();
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text + "'"
}

/// A request with question marks for the name and the holder.
fn marked(text: &str) -> (String, Vec<Mark>) {
    let mut marks: Vec<_> = [(":name", Mark::Name), (":holder", Mark::Holder)]
        .into_iter()
        .flat_map(|(word, mark)| text.match_indices(word).map(move |(at, _)| (at, mark)))
        .collect();
    marks.sort_unstable_by_key(|(at, _)| *at);
    (text.replace(":name", "?").replace(":holder", "?"), marks.into_iter().map(|(_, mark)| mark).collect())
}

impl Shared {
    async fn connect(&self) -> Result<MySqlConnection, Failure> {
        let mut connection = self.options.connect().await?;
        connection.execute(sqlx::raw_sql(AssertSqlSafe(filled(SESSION, &[(":lock_wait", "1")])))).await?;
        Ok(connection)
    }

    async fn request(&self, sql: &str) -> Result<MySqlRow, Failure> {
        let (_permit, free) = self.pool.lend().await?;
        let mut connection = match free {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let row = ask(&mut connection, sql).await?;
        self.pool.take_back(connection);
        Ok(row)
    }

    /// Joins a known name.
    async fn join(
        &self,
        sql: &Arc<str>,
        marks: &[Mark],
        name: &str,
        holder: &[u8],
    ) -> Result<MySqlRow, Failure> {
        let (_permit, free) = self.pool.lend().await?;
        let mut connection = match free {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let mut values = MySqlArguments::default();
        for mark in marks {
            match mark {
                Mark::Name => values.add(name.as_bytes())?,
                Mark::Holder => values.add(holder)?,
            }
        }
        let query = sqlx::query_with(AssertSqlSafe(Arc::clone(sql)), values);
        let row = connection.fetch_all(query).await?.into_iter().next().ok_or("no row")?;
        self.pool.take_back(connection);
        Ok(row)
    }

    /// How many rows a statement changed.
    async fn change(&self, sql: &str) -> Result<u64, Failure> {
        let (_permit, free) = self.pool.lend().await?;
        let mut connection = match free {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let done = connection.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
        self.pool.take_back(connection);
        Ok(done.rows_affected())
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
        Ok(plain::lock(Name {
            shared,
            name: ask.name.to_owned(),
            acquire,
            join,
            busy,
            leave,
            known: AtomicBool::new(false),
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
    known: AtomicBool,
}

impl Plain for Name {
    type Kept = (String, i64);

    async fn take(&self, wait: bool) -> Result<Option<Self::Kept>, Failure> {
        let bytes = HolderId::random()?.as_u128().to_be_bytes();
        let (holder, known) = (hexadecimal(&bytes), self.known.load(Ordering::Relaxed));
        if let (true, true, Some((sql, marks))) = (wait, known, &self.shared.join) {
            let number: Option<i64> = self.shared.join(sql, marks, &self.name, &bytes).await?.try_get(0)?;
            return Ok(number.map(|number| (holder, number)));
        }
        let (queue, busy) = if wait { ("1", "NULL") } else { ("0", &*self.busy) };
        let text = if wait && known { &self.join } else { &self.acquire };
        let sql = text.replace(":holder", &holder).replace(":queue", queue).replace(":busy", busy);
        let number: Option<i64> = self.shared.request(&sql).await?.try_get(0)?;
        self.known.store(true, Ordering::Relaxed);
        Ok(number.map(|number| (holder, number)))
    }

    async fn give_back(&self, (holder, number): Self::Kept) -> Result<(), Failure> {
        let sql = self.leave.replace(":holder", &holder).replace(":number", &number.to_string());
        let gone = self.shared.change(&sql).await?;
        if gone == 1 { Ok(()) } else { Err("the lock was not held any more".into()) }
    }
}
