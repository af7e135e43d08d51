//! Opening the file: is it ours, which version, and the connection to it.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use onelock_core::{Clock, Error, ErrorKind, Result};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, Row as _};

use super::bell::{self, Bell};
use super::boot::Boot;
use super::error::{Fault, cannot_open, explain, is_no_database, was_rolled_back};
use super::file::{self, Found};
use super::opened::Opened;

/// `PRAGMA application_id` of our files: "ONEL".
const APPLICATION_ID: i64 = 0x4F4E_454C;

/// The steps from an empty file to the current schema; `PRAGMA user_version` says how many were taken.
const MIGRATIONS: &[&str] = &[include_str!("../../migrations/sqlite/0001_line.sql")];

/// What a new file is given. Each write puts whole pages into the log, so small ones keep it small.
const PAGE_SIZE: u32 = 1024;

/// How much of the log stays on the disk, in bytes, once its content is in the file.
const LOG_LIMIT: &str = "1048576";

/// An open file.
#[derive(Debug)]
pub(super) struct Store {
    /// Before the connection, so that it is dropped first: what SQLite does when it closes is no loss of the log.
    pub(super) opened: Arc<Opened>,
    pub(super) conn: SqliteConnection,
    pub(super) boot: Boot,
    /// Whether the file had this boot's id in a transaction of this connection: from then on no other one can be an
    /// earlier boot's.
    pub(super) knows_boot: bool,
    path: PathBuf,
    clock: Arc<dyn Clock>,
    full_sync: bool,
    /// None within where the kernel gives no bell.
    bell: OnceCell<Option<Bell>>,
}

impl Store {
    /// Opens the file, making it when it is not there. What is there already is only read.
    ///
    /// # Errors
    /// See [`super::SqliteBackend::open`].
    pub(super) async fn open(path: &Path, clock: &Arc<dyn Clock>) -> Result<Self, Fault> {
        let boot = Boot::current()?;
        let found = file::check(path)?;
        Opened::may_connect(path)?;
        match found {
            Found::Something => look_at(path).await?,
            Found::New => file::make(path),
        }
        let mut conn = connect(path).await?;
        prepare(&mut conn).await?;
        let opened = Opened::remember(path)?;
        let (path, clock, bell) = (path.to_owned(), clock.clone(), OnceCell::new());
        Ok(Self { opened, conn, boot, knows_boot: false, path, clock, full_sync: true, bell })
    }

    /// Closes the connection, unless that would write a lost log over the file.
    pub(super) async fn close(self) {
        if self.opened.has_lost_its_log() {
            return self.abandon();
        }
        let Self { opened, conn, .. } = self;
        drop(opened);
        // Whether the log could be folded into the file does not matter: the next one to open it will.
        let _ = conn.close().await;
    }

    /// Drops the connection, unless closing it would write a lost log over the file.
    pub(super) fn let_go(self) {
        if self.opened.has_lost_its_log() {
            self.abandon();
        }
    }

    /// Never closes the connection. With it stays the record that keeps this process from opening the file again.
    fn abandon(self) {
        std::mem::forget(self);
    }

    /// Nanoseconds of the host's boot clock.
    pub(super) fn now(&self) -> i64 {
        let nanos = self.clock.now().since_origin().as_nanos();
        i64::try_from(nanos).unwrap_or(i64::MAX).saturating_sub(self.boot.shift)
    }

    /// Fails when the path, or the log's, leads to another file by now, or to none.
    pub(super) fn check_same(&self) -> Result<()> {
        self.opened.check()
    }

    /// Tells other processes that a line has changed.
    pub(super) fn ring(&self) {
        bell::ring(&self.path);
    }

    /// Begins to listen for what other processes tell; whether they can be heard.
    pub(super) fn listen(&self) -> bool {
        // Looking serves as well where the kernel has no bell left.
        self.bell.get_or_init(|| Bell::hang(&self.path).ok()).is_some()
    }

    /// Ends when another process told that a line has changed; never where nobody can be heard.
    pub(super) async fn told(&mut self) {
        let heard = match self.bell.get() {
            Some(Some(bell)) => bell.heard().await,
            _ => std::future::pending().await,
        };
        if heard.is_err() {
            self.bell = OnceCell::from(None);
        }
    }

    /// Whether the next commit is on the disk before it is answered.
    pub(super) async fn set_full_sync(&mut self, full: bool) -> Result<(), sqlx::Error> {
        if self.full_sync != full {
            // SQLite obeys this pragma when it compiles it, so it must not come out of the statement cache.
            let sql = if full { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
            sqlx::query(sql).persistent(false).execute(&mut self.conn).await?;
            self.full_sync = full;
        }
        Ok(())
    }

    /// Ends what a failed step left open; false when the connection is of no more use.
    pub(super) async fn roll_back(&mut self) -> bool {
        roll_back(&mut self.conn).await
    }
}

async fn roll_back(conn: &mut SqliteConnection) -> bool {
    match sqlx::query("ROLLBACK").execute(conn).await {
        Ok(_) => true,
        Err(error) => was_rolled_back(&error),
    }
}

fn options(path: &Path) -> SqliteConnectOptions {
    // SQLite's own waiting sleeps up to 100 ms at a time; ours is shorter, so that a hand-over between processes is
    // not held up by it.
    let options = SqliteConnectOptions::new().filename(path).busy_timeout(Duration::ZERO);
    options.disable_statement_logging()
}

async fn connect(path: &Path) -> Result<SqliteConnection> {
    options(path)
        .create_if_missing(true)
        .page_size(PAGE_SIZE)
        .pragma("journal_size_limit", LOG_LIMIT)
        .thread_name(|_| "onelock-sqlite3".to_owned())
        .connect()
        .await
        .map_err(|error| match cannot_open(&error).then(|| file::why_not_made(path)).flatten() {
            Some(reason) => reason,
            None => explain(error),
        })
}

/// Looks whether the file is ours without a lock, a byte written or a companion file made.
///
/// Through SQLite and not by reading its head ourselves: closing a file drops all locks this process has on it.
async fn look_at(path: &Path) -> Result<(), Fault> {
    let mut conn = options(path).read_only(true).immutable(true).connect().await?;
    let marks = marks(&mut conn).await;
    conn.close().await?;
    let name = path.display().to_string();
    match marks {
        Ok(marks) => Ok(check_marks(marks, &name).map(|_| ())?),
        Err(error) if is_no_database(&error) => Err(foreign(&name).into()),
        Err(error) => Err(Fault::Unsettled(error)),
    }
}

/// The application id and the schema version.
async fn marks(conn: &mut SqliteConnection) -> Result<(i64, i64), sqlx::Error> {
    let sql =
        "SELECT a.application_id, u.user_version FROM pragma_application_id AS a, pragma_user_version AS u";
    let row = sqlx::query(sql).fetch_one(conn).await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

/// How many migrations the file has had.
fn check_marks((application, version): (i64, i64), path: &str) -> Result<usize> {
    if application != APPLICATION_ID {
        return Err(foreign(path));
    }
    match usize::try_from(version) {
        Ok(version) if (1..=MIGRATIONS.len()).contains(&version) => Ok(version),
        _ => Err(newer(version, path)),
    }
}

/// Refuses what a file of another version says: what its tables mean is not known here.
///
/// # Errors
/// [`ErrorKind::Unsupported`].
pub(super) fn check_version(row: Option<&SqliteRow>) -> Result<(), Fault> {
    let version: i64 = row.ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
    if usize::try_from(version).is_ok_and(|version| version == MIGRATIONS.len()) {
        return Ok(());
    }
    Err(newer(version, "the file").into())
}

fn newer(version: i64, path: &str) -> Error {
    let text = format!(
        "{path} was written by a newer onelock: its schema is version {version}, this program knows up to {}",
        MIGRATIONS.len()
    );
    Error::new(ErrorKind::Unsupported, text)
}

fn foreign(path: &str) -> Error {
    let text = format!("{path} is not a lock file of onelock; it was left as it is");
    Error::new(ErrorKind::Foreign, text)
}

/// Brings the file to the current schema and to its write-ahead log, where it is not there yet.
async fn prepare(conn: &mut SqliteConnection) -> Result<(), Fault> {
    if migrations(conn).await? < MIGRATIONS.len() {
        let result = migrate(conn).await;
        if result.is_err() {
            roll_back(conn).await;
        }
        result?;
    }
    // Only now, so that the marks of the file are in its own first page from the start and not in the log alone.
    let mode: String = sqlx::query("PRAGMA journal_mode = WAL").fetch_one(&mut *conn).await?.try_get(0)?;
    if mode != "wal" {
        let text =
            format!("SQLite cannot keep a write-ahead log there (journal mode {mode}): is it a local disk?");
        return Err(Fault::Verb(Error::new(ErrorKind::Unsupported, text)));
    }
    // The log and its index are there once something was read.
    marks(conn).await?;
    Ok(())
}

/// How many migrations the file has had; none when it is empty.
async fn migrations(conn: &mut SqliteConnection) -> Result<usize, Fault> {
    let tables: i64 =
        sqlx::query("SELECT count(*) FROM sqlite_schema").fetch_one(&mut *conn).await?.try_get(0)?;
    let marks = marks(conn).await?;
    if tables == 0 && marks == (0, 0) { Ok(0) } else { Ok(check_marks(marks, "the file")?) }
}

async fn migrate(conn: &mut SqliteConnection) -> Result<(), Fault> {
    conn.execute("BEGIN IMMEDIATE").await?;
    // Again, now that nobody else can write: the file may have come into being since we looked.
    let done = migrations(conn).await?;
    for &sql in &MIGRATIONS[done..] {
        conn.execute(sqlx::raw_sql(sql)).await?;
    }
    conn.execute("COMMIT").await?;
    Ok(())
}

/// Sleeps between two tries: longer each time, and not in step with others.
#[derive(Debug, Default)]
pub(super) struct Nap {
    taken: u32,
}

impl Nap {
    /// How often a pause doubles at the head of the queue, where a single process tries: up to about a millisecond.
    pub(super) const SHORT: u32 = 3;
    /// Where there is no queue, so that a crowd does not keep the processor busy: up to about 25 milliseconds.
    pub(super) const LONG: u32 = 8;

    /// Sleeps. It blocks: the thread is ours alone.
    pub(super) fn take(&mut self, doublings: u32) {
        let base = 100 << self.taken.min(doublings);
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.subsec_nanos());
        let jitter = u64::from(nanos / 16) % (base / 2);
        self.taken += 1;
        std::thread::sleep(Duration::from_micros(base * 3 / 4 + jitter));
    }
}
