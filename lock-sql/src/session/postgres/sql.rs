//! What a session is asked, in the server's words.

use std::sync::Arc;

/// The requests. Each answers which session it is, and what came of it.
#[derive(Debug)]
pub(super) struct Sql {
    /// By whether it waits, and whether it shares.
    pub(super) take: [[Arc<str>; 2]; 2],
    pub(super) give: [Arc<str>; 2],
    /// Both exclusive.
    pub(super) swap: Arc<str>,
    pub(super) beat: Arc<str>,
    pub(super) waits: Arc<str>,
    pub(super) look: Arc<str>,
    pub(super) end_session: Arc<str>,
    pub(super) end_holder: Arc<str>,
    /// Which session this is, and whether its server takes writes.
    pub(super) begin: Arc<str>,
}

impl Sql {
    pub(super) fn new(schema: &str) -> Self {
        let schema = format!("\"{schema}\"");
        let fill = |sql: &str, what: &str, with: &str| {
            sql.trim_end().replace("{schema}", &schema).replace(what, with.trim_end()).into()
        };
        let plain = |sql| fill(sql, "{}", "");
        let holders = |sql| fill(sql, "{holders}", include_str!("sql/holders.sql"));
        // The words are spelled in one place: `onelock <number> <tag> <note>`. A CASE looks at its branches in order: the
        // number is drawn by who holds the lock, and shown no sooner.
        let take = |taken| fill(include_str!("sql/take.sql"), "{taken}", taken);
        let give = |unlock| fill(include_str!("sql/give.sql"), "{unlock}", unlock);
        Self {
            take: [
                [take("pg_try_advisory_lock($1)"), take("pg_try_advisory_lock_shared($1)")],
                [take("pg_advisory_lock($1) IS NOT NULL"), take("pg_advisory_lock_shared($1) IS NOT NULL")],
            ],
            give: [give("pg_advisory_unlock"), give("pg_advisory_unlock_shared")],
            swap: plain(include_str!("sql/swap.sql")),
            beat: plain(include_str!("sql/beat.sql")),
            waits: plain(include_str!("sql/waits.sql")),
            look: holders(include_str!("sql/look.sql")),
            end_session: plain(include_str!("sql/end_session.sql")),
            end_holder: holders(include_str!("sql/end_holder.sql")),
            begin: plain(include_str!("sql/begin.sql")),
        }
    }
}
