//! Which server is the master: asked of the sentinels at every connect.

use std::collections::HashMap;

use onelock_core::{Error, ErrorKind, Host, Result};

use super::majority::majority;
use crate::config::RedisConfig;
use crate::connection::socket;
use crate::error;

/// The newest master that the sentinels know, and the epoch of the failover that made it one.
///
/// # Errors
/// [`ErrorKind::Unavailable`] when no sentinel answers, or none knows the name.
pub(crate) async fn find(config: &RedisConfig, name: &str) -> Result<(Host, u64)> {
    let said = |host: &Host, e: Error| Error::new(e.kind(), format!("sentinel {host}: {e}"));
    let seeker = config.of_sentinels();
    let ask = async |host| ask(&seeker, host, name).await.map_err(|e| said(host, e));
    let answers = majority(config.hosts.iter().map(ask).collect()).await?;
    let newest = answers.into_iter().max_by_key(|(_, epoch)| *epoch);
    newest.ok_or_else(|| Error::new(ErrorKind::Unavailable, "no sentinel answers"))
}

async fn ask(config: &RedisConfig, host: &Host, name: &str) -> Result<(Host, u64)> {
    let settings = redis::AsyncConnectionConfig::new();
    let mut sentinel = socket::open(config, host, settings).await?;
    // The address counts for the epoch that is the same before and after it was read. (`MASTER` itself has an address,
    // too, but while a failover is under way that is the old master's beside the new epoch.)
    let mut asked = redis::pipe();
    for verb in ["MASTER", "GET-MASTER-ADDR-BY-NAME", "MASTER"] {
        asked.cmd("SENTINEL").arg(verb).arg(name);
    }
    type Said = HashMap<String, String>;
    let answers = asked.query_async(&mut sentinel.requests).await;
    let (before, address, after): (Said, Option<(String, u16)>, Said) =
        answers.map_err(|e| error::from_redis(&e))?;
    let unavailable = |text| Error::new(ErrorKind::Unavailable, text);
    let epoch = |said: &Said| said.get("config-epoch").and_then(|epoch| epoch.parse().ok());
    let (host, port) = address.ok_or_else(|| unavailable("it knows no address of the master"))?;
    match (epoch(&before), epoch(&after)) {
        (Some(before), Some(after)) if before == after => Ok((Host::new(host, port), after)),
        (Some(_), Some(_)) => Err(unavailable("a failover is under way")),
        _ => Err(Error::new(ErrorKind::Protocol, "its answer has no epoch")),
    }
}
