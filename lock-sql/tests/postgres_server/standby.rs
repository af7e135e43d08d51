//! A synchronous standby, and its promotion.

use onelock_conformance::Verdict;
use onelock_conformance::ensure;
use onelock_conformance::servers::process::until;

use super::PostgresServer;

/// A standby without which `primary` answers no durable commit any more.
pub(crate) async fn synchronous(primary: &PostgresServer) -> Verdict<PostgresServer> {
    let standby = primary.standby().await?;
    primary.say("ALTER SYSTEM SET synchronous_standby_names = '*'").await?;
    primary.say("SELECT pg_reload_conf()").await?;
    let sync = "SELECT pid FROM pg_stat_replication WHERE sync_state = 'sync'";
    until("a standby that follows", || async {
        ensure!(!primary.say(sync).await?.is_empty(), "none does");
        Ok(())
    })
    .await?;
    Ok(standby)
}

/// Makes a primary of it; the old one has ended.
pub(crate) async fn promote(standby: &PostgresServer) -> Verdict {
    // Not waiting for it: a statement under way may be in the way of what the standby has yet to replay.
    standby.say("SELECT pg_promote(false)").await?;
    // It waits for no standby of its own: it has none.
    standby.say("ALTER SYSTEM RESET synchronous_standby_names").await?;
    standby.say("SELECT pg_reload_conf()").await?;
    Ok(())
}
