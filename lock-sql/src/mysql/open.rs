//! What is looked at once, when a client connects: the server, its settings, the tables and the user's rights.

use std::sync::atomic::Ordering;

use onelock_core::{Error, ErrorKind, Result};

use super::config::MySqlConfig;
use super::pool::{Answer, Client};
use super::sql::{Value, list};
use crate::Durability;

/// Tables of ours.
pub(crate) struct Tables {
    /// What they are called, without the prefix.
    pub(crate) names: &'static [&'static str],
    /// How their version is asked for, and which one this code reads and writes.
    pub(crate) version: (&'static str, i64),
    pub(crate) migration: &'static str,
    /// What a user without the right to run it is to ask for.
    pub(crate) instead: &'static str,
}

const LINES: Tables = Tables {
    names: &["counter", "line", "store"],
    version: (include_str!("sql/version.sql"), 2),
    migration: include_str!("schema/0001.sql"),
    instead: "run src/mysql/schema/0001.sql of onelock-sql and grant SELECT, INSERT, UPDATE and DELETE on `onelock_line`, SELECT \
              and UPDATE on `onelock_counter` and `onelock_store`",
};

/// What session locks need of a server; and the text that `sql` asks for of their own tables.
pub(crate) async fn for_sessions(config: &MySqlConfig, own: &Tables, sql: &str) -> Result<String> {
    let client = Client::new(config);
    server(&client, config).await?;
    tables(&client, own).await?;
    let (text,) = client.ask(sql, &[], Answer::one).await?;
    Ok(text)
}

/// Looks at everything, and makes the tables when there are none. Whether a commit that was answered survives a crash of the
/// server's machine.
pub(super) async fn open(client: &Client, config: &MySqlConfig) -> Result<bool> {
    let durable = server(client, config).await?;
    tables(client, &LINES).await?;
    // Needs each right and each column that a verb needs.
    client.ask(include_str!("sql/check.sql"), &[], |_| Ok(())).await?;
    Ok(durable)
}

/// Whether the server may be used at all, and whether its commits last.
async fn server(client: &Client, config: &MySqlConfig) -> Result<bool> {
    let all: Vec<(String, String)> = client.ask(include_str!("sql/variables.sql"), &[], Answer::all).await?;
    let value = |name: &str| all.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let version = value("version").unwrap_or_default();
    check_version(version)?;
    for (variable, set, what, instead) in [
        ("wsrep_on", "ON", "a Galera node", "server that is no cluster"),
        ("group_replication_single_primary_mode", "OFF", "one of several primaries", "single primary"),
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
    Ok(loses.is_none())
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

async fn tables(client: &Client, ours: &Tables) -> Result<()> {
    if present(client, ours).await? {
        return Ok(());
    }
    client.ask(ours.migration, &[], |_| Ok(())).await.map_err(|error| {
        if error.kind() != ErrorKind::Denied {
            return error;
        }
        let instead = ours.instead.replace("`onelock_", &format!("`{}", client.prefix));
        let text = format!(
            "tables `{}…` are missing or this user has no right on some of them, and it may not make them: let an \
             administrator {instead} ({error})",
            client.prefix
        );
        Error::new(ErrorKind::Denied, text).caused_by(error)
    })?;
    if present(client, ours).await? {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Foreign, "the tables are there, but not the row of their version"))
}

/// Whether our tables are there and are ours.
async fn present(client: &Client, ours: &Tables) -> Result<bool> {
    let names: Vec<_> = ours.names.iter().map(|table| format!("{}{table}", client.prefix)).collect();
    let values = [("tables", Value::Part(list(&names)))];
    let found: Vec<(String, String)> =
        client.ask(include_str!("sql/tables.sql"), &values, Answer::all).await?;
    for (table, engine) in &found {
        if engine != "InnoDB" {
            let engine = if engine.is_empty() { "no engine (a view)" } else { engine };
            let text = format!("`{table}` is on {engine}, the tables of onelock are on InnoDB");
            return Err(Error::new(ErrorKind::Foreign, text));
        }
    }
    if found.len() < names.len() {
        return Ok(false);
    }
    let (sql, known) = ours.version;
    match client.ask(sql, &[], Answer::all::<(i64,)>).await?[..] {
        [] => Ok(false),
        [(version,), ..] if version == known => Ok(true),
        [(other,), ..] => Err(unsupported(format!(
            "the tables are of version {other}; this version of onelock knows version {known}"
        ))),
    }
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
