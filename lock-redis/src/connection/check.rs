//! What a client must know of its servers before it trusts them with locks: rights, memory policy, persistence.

use std::sync::Arc;

use onelock_core::{Capabilities, Error, ErrorKind, HolderId, Result};
use redis::InfoDict;

use crate::config::{Gate, Layout, RedisConfig, Topology, bad};
use crate::keys::slot;
use crate::reply::{self, Answer};
use crate::scripts;
use crate::topology::Servers;

/// What the verbs use, on a hash, a sorted set and a string.
const TRIED: &str = "time,exists S,incr S,set S 1 px 1,get S,del S,pexpiretime H,hset H a 1,hget H a,hexists H a,pexpireat H 1,hdel H a,\
    zadd Z 1 a,zcard Z,zscore Z a,zrange Z 0 0,zrangebyscore Z 0 0,pexpireat Z 1,zrem Z a,publish C -";
/// The same for those of the plain layout.
const PLAIN_TRIED: &str = "time,set S 1 px 1,get S,incr S,pexpire S 1,pttl S,del S,pexpiretime S";

/// Fails when an access list refuses a command the verbs need. In the plain layout keys are no part of it, because the user may
/// be bound to those of the locks.
pub(crate) async fn rights(servers: &Arc<Servers>, config: &RedisConfig, channel: &str) -> Result<()> {
    // Part of the names of keys that nobody else uses.
    let (prefix, id) = (&config.namespace, HolderId::random()?.to_hex());
    for (_, bucket) in servers.all().await? {
        let key = |kind| format!("{prefix}:{{{bucket}}}:{kind}:{id}");
        let (h, z, s) = (key("h"), key("z"), key("s"));
        let (command, text) = if config.layout == Layout::Line {
            let mut command = scripts::PROBE.call(&[&h, &z, &s]);
            // Only a cluster moves slots.
            command
                .arg(if servers.are_many() { [TRIED, ",hlen H"].concat() } else { TRIED.to_owned() })
                .arg(channel);
            (command, format!(" on the keys {prefix}:* or the channels {prefix}:inbox:*, or"))
        } else {
            let mut command = scripts::PROBE.call(&[]);
            command.arg(PLAIN_TRIED).arg(format!("{prefix}onelock-probe:{{{bucket}}}:{id}"));
            (command, String::new())
        };
        let answer = servers.call(slot(&h), &scripts::PROBE, &command).await.and_then(Answer::value);
        let missing: Vec<String> = match answer {
            // A node that is down when the client comes up is for the verbs to find out.
            Err(e) if servers.are_many() && e.is_retryable() => continue,
            missing => reply::read(missing?)?,
        };
        if let Some(unknown) = missing.iter().find_map(|name| name.strip_prefix('!')) {
            let text = format!(
                "the server is too old: Redis 7.0 or Valkey 7.2 is needed, and this one has no {unknown}"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if !missing.is_empty() {
            let text = format!("the user lacks rights{text} for the commands: {}", missing.join(", "));
            return Err(Error::new(ErrorKind::Denied, text));
        }
    }
    Ok(())
}

/// Learns what the servers would do with locks when their memory is full, whether they keep them over a restart, and whether
/// the numbers of a single server can go back. Without the right to ask, they are taken not to keep them, and to go back.
pub(crate) async fn capabilities(
    servers: &Arc<Servers>,
    config: &RedisConfig,
    mut capabilities: Capabilities,
) -> Result<Capabilities> {
    let (mut durable, mut fencing) = (true, true);
    for (connection, _) in servers.all().await? {
        let info = match connection.query::<InfoDict>(&redis::cmd("INFO")).await {
            Ok(info) => Some(info),
            Err(e) if e.kind() == ErrorKind::Denied => None,
            Err(e) if servers.are_many() && e.is_retryable() => continue,
            Err(e) => return Err(e),
        };
        let said = |name: &str| info.as_ref().and_then(|info| info.get::<String>(name));
        if config.gate == Gate::RunId && info.is_none() {
            let text = "the option gate=run_id needs the right to the command: info";
            return Err(Error::new(ErrorKind::Denied, text));
        }
        if !servers.are_many() && said("cluster_enabled").as_deref() == Some("1") {
            return Err(bad("the server is a node of a cluster, whose URL begins with redis+cluster://"));
        }
        let policy = said("maxmemory_policy").unwrap_or_else(|| "noeviction".to_owned());
        if said("maxmemory").is_some_and(|max| max != "0") && policy != "noeviction" {
            if !config.allow_eviction {
                let text = format!(
                    "the server drops keys when its memory is full (maxmemory-policy {policy}), and with them locks; \
                     use a server with noeviction, or say allow_eviction=true"
                );
                return Err(Error::new(ErrorKind::InvalidConfig, text));
            }
            // A counter has no expiry: only these policies can drop it, and then tokens start again.
            fencing &= !policy.starts_with("allkeys");
        }
        // One of its replicas may be promoted in the place of a single server: then its counters can go back, and unlike sentinels
        // and clusters nobody agrees on an epoch. A user without the right to ask does not know that there is none.
        let vouched_for = config.topology != Topology::Single || config.replicas > 0 || config.never_promoted;
        fencing &= vouched_for || said("connected_slaves").as_deref() == Some("0");
        durable &= said("aof_enabled").as_deref() == Some("1");
    }
    capabilities.fencing &= fencing;
    capabilities.raise &= fencing;
    Ok(capabilities.durable(durable))
}
