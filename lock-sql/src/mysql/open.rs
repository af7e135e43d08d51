//! What is looked at once, when a client connects: the server, its settings, the tables and the user's rights.

use std::sync::atomic::Ordering;
use std::time::Duration;

use onelock_core::{Error, ErrorKind, Result};

use super::config::MySqlConfig;
use super::keys::TABLES;
use super::line::Cells;
use super::pool::{Answer, Client};
use super::sql::{Value, list};
use crate::Durability;
use crate::pool::Lane;

/// The version of the tables that this code reads and writes.
const VERSION: i64 = 2;

/// What was found out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// Whether a commit that was answered survives a crash of the server's machine.
    pub(super) durable: bool,
    /// Whether it is MariaDB; MySQL if not.
    pub(crate) mariadb: bool,
}

/// What session locks need of a server, which use none of the tables here.
pub(crate) async fn for_sessions(config: &MySqlConfig, limit: Duration) -> Result<Found> {
    let config = MySqlConfig { request_timeout: limit, ..config.clone() };
    let client = Client::new(&config);
    let found = server(&client, &config).await;
    client.close();
    found
}

/// Looks at everything, and makes the tables when there are none.
pub(super) async fn open(client: &Client, config: &MySqlConfig) -> Result<Found> {
    let found = server(client, config).await?;
    tables(client).await?;
    // Needs each right and each column that a verb needs.
    client.verbs.ask(Lane::Verb, &client.sql.check.fill(&[]), |_| Ok(())).await?;
    Ok(found)
}

/// Whether the server may be used at all.
async fn server(client: &Client, config: &MySqlConfig) -> Result<Found> {
    let all = client.verbs.ask(Lane::Verb, &client.sql.variables.fill(&[]), pairs).await?;
    let value = |name: &str| all.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let version = value("version").unwrap_or_default();
    check_version(version)?;
    for (variable, set, what, instead) in [
        ("wsrep_on", "ON", "a Galera node", "server that is no cluster"),
        (
            "group_replication_single_primary_mode",
            "OFF",
            "set to group replication with several primaries",
            "single primary",
        ),
    ] {
        if value(variable) == Some(set) {
            return Err(unsupported(format!(
                "the server is {what} ({variable}={set}): its row locks do not reach the other members, \
                 so a lock there may have two holders; use a {instead}, or another store"
            )));
        }
    }
    if version.contains("MariaDB") && config.blocks {
        client.verbs.server.blocks.store(true, Ordering::Release);
    }
    let loses = loses_commits(value);
    if let Some(setting) = &loses
        && config.durability == Durability::Durable
    {
        return Err(unsupported(format!(
            "the server answers commits that a power cut takes back ({setting}), so two may hold then and a token may \
             be given twice; change that setting, or accept it with `durability=relaxed`"
        )));
    }
    let durable = loses.is_none();
    Ok(Found { durable, mariadb: version.contains("MariaDB") })
}

/// The setting that makes the server answer a commit before it is on the disk, and what it should be.
fn loses_commits<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    let flushes = value("innodb_flush_log_at_trx_commit").unwrap_or_default();
    let set = |name: &str, found: &str, good: &str| Some(format!("{name}={found}, needs {good}"));
    match flushes {
        // MariaDB's 3 flushes the log of InnoDB at the commit as well.
        "3" => None,
        // With a binary log, InnoDB flushes what was prepared, and recovery commits what the binary log has: so that
        // must be on the disk. Without one it flushes the commit.
        "1" => match (value("log_bin"), value("sync_binlog").unwrap_or_default()) {
            (Some("OFF"), _) | (_, "1") => None,
            (_, found) => set("sync_binlog", found, "1 while log_bin is ON"),
        },
        found => set("innodb_flush_log_at_trx_commit", found, "1"),
    }
}

/// Window functions, CHECK constraints that are obeyed.
fn check_version(version: &str) -> Result<()> {
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let mut part = || parts.next().unwrap_or(0);
    let found = (part(), part(), part());
    let (name, least) =
        if version.contains("MariaDB") { ("MariaDB", (10, 6, 0)) } else { ("MySQL", (8, 0, 16)) };
    if found >= least {
        return Ok(());
    }
    let (a, b, c) = least;
    Err(unsupported(format!("the server is {name} {version:?}; the store needs {a}.{b}.{c} or later")))
}

fn unsupported(text: String) -> Error {
    Error::new(ErrorKind::Unsupported, text)
}

async fn tables(client: &Client) -> Result<()> {
    if !present(client).await? {
        let made = client.verbs.ask(Lane::Verb, &client.sql.migration, |_| Ok(())).await;
        made.map_err(|error| explain_migration(client, error))?;
        if !present(client).await? {
            return Err(Error::new(
                ErrorKind::Foreign,
                "the tables are there, but not the row of their version",
            ));
        }
    }
    Ok(())
}

/// Whether our tables are there and are ours.
async fn present(client: &Client) -> Result<bool> {
    let own = TABLES.map(|table| format!("{}{table}", client.sql.prefix));
    let sql = client.sql.tables.fill(&[("tables", Value::Part(&list(&own)))]);
    let found = client.verbs.ask(Lane::Verb, &sql, pairs).await?;
    for (table, engine) in &found {
        if engine != "InnoDB" {
            let engine = if engine.is_empty() { "no engine (a view)" } else { engine };
            let text = format!("`{table}` is on {engine}, the tables of onelock are on InnoDB");
            return Err(Error::new(ErrorKind::Foreign, text));
        }
    }
    if found.len() < own.len() {
        return Ok(false);
    }
    let read =
        |answer: &Answer| if answer.rows.is_empty() { Ok(None) } else { Cells(answer.one()?).maybe(0) };
    match client.verbs.ask(Lane::Verb, &client.sql.version.fill(&[]), read).await? {
        None => Ok(false),
        Some(VERSION) => Ok(true),
        Some(other) => Err(unsupported(format!(
            "the tables are of version {other}; this version of onelock knows version {VERSION}"
        ))),
    }
}

/// Pairs of texts.
fn pairs(answer: &Answer) -> Result<Vec<(String, String)>> {
    answer.rows.iter().map(Cells).map(|row| Ok((row.text(0)?, row.text(1)?))).collect()
}

fn explain_migration(client: &Client, error: Error) -> Error {
    if error.kind() != ErrorKind::Denied {
        return error;
    }
    let text = format!(
        "the tables `{0}…` are missing or this user has no right on some of them, and it may not make them: \
         let an administrator run migrations/mysql/0001_line.sql and grant SELECT, INSERT, UPDATE and DELETE on \
         `{0}line`, SELECT and UPDATE on `{0}counter` and `{0}store` ({error})",
        client.sql.prefix
    );
    Error::new(ErrorKind::Denied, text).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_lose_commits_are_named() {
        let with = |flushes, log_bin, sync_binlog| {
            let all = [
                ("innodb_flush_log_at_trx_commit", flushes),
                ("log_bin", log_bin),
                ("sync_binlog", sync_binlog),
            ];
            loses_commits(|name| all.iter().find(|(key, _)| *key == name).map(|(_, value)| *value))
        };
        for (flushes, log_bin, sync_binlog) in
            [("1", "OFF", "0"), ("1", "ON", "1"), ("3", "ON", "0"), ("3", "OFF", "0")]
        {
            assert_eq!(with(flushes, log_bin, sync_binlog), None, "{flushes} {log_bin} {sync_binlog}");
        }
        for (flushes, log_bin, sync_binlog, named) in [
            ("1", "ON", "0", "sync_binlog=0"),
            ("1", "ON", "100", "sync_binlog=100"),
            ("0", "OFF", "1", "innodb_flush_log_at_trx_commit=0"),
            ("2", "ON", "1", "innodb_flush_log_at_trx_commit=2"),
        ] {
            let found = with(flushes, log_bin, sync_binlog);
            assert!(found.as_ref().is_some_and(|text| text.contains(named)), "{found:?}");
        }
        // A server that does not say is not one that is known to keep them.
        assert!(loses_commits(|_| None).is_some());
    }

    #[test]
    fn old_servers_are_refused_by_name() {
        for good in
            ["10.11.19-MariaDB-0+deb12u1", "11.4.2-MariaDB", "10.6.0-MariaDB", "8.0.16", "8.4.0", "9.7.4"]
        {
            assert!(check_version(good).is_ok(), "{good}");
        }
        for bad in ["10.5.9-MariaDB", "5.7.44-log", "8.0.15", "", "x"] {
            assert_eq!(check_version(bad).unwrap_err().kind(), ErrorKind::Unsupported, "{bad}");
        }
        let text = check_version("10.5.9-MariaDB").unwrap_err().to_string();
        assert!(text.contains("MariaDB") && text.contains("10.6.0"), "{text}");
    }
}
