//! Opening the file: is it ours, which version, and the connection to it.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::{Clock, Error, ErrorKind, Result};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, Row as _};

use super::bell::{self, Bell};
use super::boot::Boot;
use super::config::SqliteConfig;
use super::error::{Fault, cannot_open, explain, was_rolled_back};
use super::file::{self, FileId, Found};

/// `PRAGMA application_id` of our files: "ONEL".
const APPLICATION_ID: i64 = 0x4F4E_454C;

/// The steps from an empty file to the current schema; `PRAGMA user_version` says how many were taken.
const MIGRATIONS: &[&str] = &[include_str!("../../migrations/sqlite/0001_line.sql")];

/// An open file.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) conn: SqliteConnection,
    pub(super) boot: Boot,
    path: PathBuf,
    id: FileId,
    clock: Arc<dyn Clock>,
    full_sync: bool,
    /// None within where the kernel gives no bell.
    bell: OnceCell<Option<Bell>>,
}

impl Store {
    /// Opens the file, making it when it is not there. Waits for others who do the same.
    ///
    /// # Errors
    /// See [`super::SqliteBackend::open`].
    pub(super) async fn open(config: &SqliteConfig, clock: &Arc<dyn Clock>) -> Result<Self> {
        let path = &config.path;
        let boot = Boot::current()?;
        if file::check(path)? == Found::Something {
            look_at(path).await?;
        }
        let mut conn = connect(path).await?;
        let deadline = Instant::now() + config.busy_timeout;
        let mut nap = Nap::default();
        loop {
            match prepare(&mut conn).await {
                Ok(()) => break,
                Err(fault) if fault.is_busy() && Instant::now() < deadline => nap.take(),
                Err(fault) => return Err(fault.into_error()),
            }
        }
        let id = file::identify(path)?;
        let (path, clock, bell) = (path.clone(), clock.clone(), OnceCell::new());
        Ok(Self { conn, boot, path, id, clock, full_sync: true, bell })
    }

    /// Nanoseconds of the host's boot clock.
    pub(super) fn now(&self) -> i64 {
        let nanos = self.clock.now().since_origin().as_nanos();
        i64::try_from(nanos).unwrap_or(i64::MAX).saturating_sub(self.boot.shift)
    }

    /// Fails when the path leads to another file by now, or to none.
    pub(super) fn check_same(&self) -> Result<()> {
        file::check_same(&self.path, self.id)
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
    SqliteConnectOptions::new().filename(path).busy_timeout(Duration::ZERO).disable_statement_logging()
}

async fn connect(path: &Path) -> Result<SqliteConnection> {
    options(path)
        .create_if_missing(true)
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
async fn look_at(path: &Path) -> Result<()> {
    let mut conn = options(path).read_only(true).immutable(true).connect().await.map_err(explain)?;
    let marks = marks(&mut conn).await;
    conn.close().await.map_err(explain)?;
    match marks {
        Ok(marks) => check_marks(marks, path).map(|_| ()),
        Err(error) => Err(match explain(error) {
            e if e.kind() == ErrorKind::Unavailable => e,
            _ => foreign(path),
        }),
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
fn check_marks((application, version): (i64, i64), path: &Path) -> Result<usize> {
    if application != APPLICATION_ID {
        return Err(foreign(path));
    }
    match usize::try_from(version) {
        Ok(version) if (1..=MIGRATIONS.len()).contains(&version) => Ok(version),
        _ => {
            let text = format!(
                "{} was written by a newer onelock: its schema is version {version}, this program knows up to {}",
                path.display(),
                MIGRATIONS.len()
            );
            Err(Error::new(ErrorKind::Unsupported, text))
        }
    }
}

fn foreign(path: &Path) -> Error {
    let text = format!("{} is not a lock file of onelock; it was left as it is", path.display());
    Error::new(ErrorKind::Foreign, text)
}

/// Brings the file to the current schema and to its write-ahead log.
async fn prepare(conn: &mut SqliteConnection) -> Result<(), Fault> {
    let result = migrate(conn).await;
    if result.is_err() {
        roll_back(conn).await;
    }
    result?;
    // Only now, so that the marks of the file are in its own first page from the start and not in the log alone.
    let mode: String = sqlx::query("PRAGMA journal_mode = WAL").fetch_one(&mut *conn).await?.try_get(0)?;
    if mode != "wal" {
        let text =
            format!("SQLite cannot keep a write-ahead log there (journal mode {mode}): is it a local disk?");
        return Err(Fault::Verb(Error::new(ErrorKind::Unsupported, text)));
    }
    Ok(())
}

async fn migrate(conn: &mut SqliteConnection) -> Result<(), Fault> {
    conn.execute("BEGIN IMMEDIATE").await?;
    // Again, now that nobody else can write: the file may have come into being since we looked.
    let tables: i64 =
        sqlx::query("SELECT count(*) FROM sqlite_schema").fetch_one(&mut *conn).await?.try_get(0)?;
    let marks = marks(conn).await?;
    let done = if tables == 0 && marks == (0, 0) { 0 } else { check_marks(marks, Path::new("the file"))? };
    for &sql in &MIGRATIONS[done..] {
        conn.execute(sqlx::raw_sql(sql)).await?;
    }
    conn.execute("COMMIT").await?;
    Ok(())
}

/// Waiting for another writer: short, longer each time, and not in step with others.
#[derive(Debug, Default)]
pub(super) struct Nap {
    taken: u32,
}

impl Nap {
    /// Sleeps from a tenth of a millisecond to about two. It blocks: the thread is ours alone.
    pub(super) fn take(&mut self) {
        let base = 100 << self.taken.min(4);
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.subsec_nanos());
        let jitter = u64::from(nanos / 16) % (base / 2);
        self.taken += 1;
        std::thread::sleep(Duration::from_micros(base * 3 / 4 + jitter));
    }
}
