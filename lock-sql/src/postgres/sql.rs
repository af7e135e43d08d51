//! The functions of the schema, as they are called.

use std::sync::Arc;

use super::call::Verb;
use crate::Durability;

/// The calls, with the schema in them.
pub(super) struct Sql {
    pub(super) acquire: Verb,
    pub(super) renew: Verb,
    pub(super) release: Verb,
    pub(super) evict: Verb,
    pub(super) raise: Verb,
    pub(super) inspect: Verb,
    pub(super) list: Verb,
    pub(super) watched: Verb,
    /// Tells a channel something.
    pub(super) notify: Verb,
    /// Which session of the server this is.
    pub(super) session: Verb,
}

impl Sql {
    pub(super) fn new(schema: &str, durability: Durability) -> Self {
        let durable = durability == Durability::Durable;
        // The schema was checked to be a plain identifier; in quotes it may be a word of the language, too.
        let text = |text: &str| -> Arc<str> {
            let text = text.trim_end().replace("{schema}", &format!("\"{schema}\""));
            text.replace("{durable}", if durable { "true" } else { "false" }).into()
        };
        let verb = |function: &'static str, sql: &str| Verb {
            function,
            sql: text(sql),
            in_one: None,
            urgent: false,
            many: false,
        };
        let many = |function: &'static str, sql: &str| Verb { many: true, ..verb(function, sql) };
        // What waits for the disk is two transactions where it may be: nobody else waits for the disk with it then.
        let join = |function: &'static str, two: &str, one: &str| {
            if durable {
                Verb { in_one: Some(text(one)), ..verb(function, two) }
            } else {
                verb(function, one)
            }
        };
        Self {
            acquire: join(
                "acquire",
                include_str!("sql/acquire_and_flush.sql"),
                include_str!("sql/acquire.sql"),
            ),
            renew: Verb {
                urgent: true,
                ..join("renew", include_str!("sql/renew_and_flush.sql"), include_str!("sql/renew.sql"))
            },
            release: verb("release", include_str!("sql/release.sql")),
            evict: verb("evict", include_str!("sql/evict.sql")),
            raise: verb("raise", include_str!("sql/raise.sql")),
            inspect: many("inspect", include_str!("sql/inspect.sql")),
            list: many("list", include_str!("sql/list.sql")),
            watched: many("watched", include_str!("sql/watched.sql")),
            notify: verb("pg_notify", "SELECT pg_notify($1, $2)"),
            session: verb("pg_backend_pid", "SELECT pg_backend_pid()"),
        }
    }
}
