//! The shared suite on SQLite files.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use async_trait::async_trait;
use onelock_conformance::Verdict;
use onelock_conformance::harness::file::{File, FileInspector};
use onelock_core::Capabilities;

/// What the store must declare.
const CAPABILITIES: Capabilities = {
    let mut capabilities = Capabilities::of_lines();
    capabilities.granularity = Duration::ZERO;
    capabilities
};

/// Looks into the file with a connection of its own.
struct Tables;

fn column(file: &Path, query: &str) -> Verdict<Vec<String>> {
    let connection = rusqlite::Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    let mut statement = connection.prepare(query)?;
    let rows = statement.query_map((), |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

#[async_trait]
impl FileInspector for Tables {
    async fn residue(&self, file: &Path) -> Verdict<Vec<String>> {
        column(file, "SELECT name FROM onelock_line ORDER BY token")
    }

    async fn counters(&self, file: &Path) -> Verdict<u64> {
        Ok(column(file, "SELECT boot FROM onelock_meta")?.len() as u64)
    }
}

fn main() -> ExitCode {
    onelock_conformance::run(File::new("sqlite", onelock_sql::SQLITE_DRIVER, CAPABILITIES, Tables))
}
