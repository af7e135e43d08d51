//! Opens a connection: finds the server, subscribes the inbox, loads the scripts, learns the epoch of its numbers.

use onelock_core::{Error, ErrorKind, Host, Result};
use redis::aio::AsyncPushSender;
use redis::{AsyncConnectionConfig, InfoDict, Pipeline};

use super::socket::{self, Socket};
use crate::config::{RedisConfig, Topology};
use crate::topology::epoch::FailoverEpoch;
use crate::topology::sentinel;
use crate::{error, scripts};

/// A connection on which pushes come, and what its joins must prove, where a replica can be promoted: to `host`, or to the master
/// that the sentinels name.
pub(super) async fn open(
    config: &RedisConfig,
    host: &Host,
    channel: &str,
    pushed: impl AsyncPushSender,
) -> Result<(Socket, Option<FailoverEpoch>)> {
    let (host, epoch) = match &config.topology {
        Topology::Single | Topology::Cluster => (host.clone(), None),
        Topology::Sentinel { master } => {
            let (host, epoch) = sentinel::find(config, master).await?;
            (host, Some(epoch))
        }
    };
    let settings = AsyncConnectionConfig::new().set_pipeline_buffer_size(1024).set_push_sender(pushed);
    let socket = socket::open(config, &host, settings).await?;
    let mut load = Pipeline::with_capacity(scripts::ALL.len() + 3);
    for script in scripts::ALL {
        load.add_command(script.load()).ignore();
    }
    // A node's id before its epoch: promoted in between it has another id, so that its joins fail and the next connection asks anew.
    if config.topology != Topology::Single {
        load.cmd("INFO").arg("replication");
    }
    if config.topology == Topology::Cluster {
        load.cmd("CLUSTER").arg("INFO");
    }
    let (mut subscriber, mut loader) = (socket.requests.clone(), socket.requests.clone());
    let subscribe = async {
        // Nothing is pushed where nobody can wait.
        if channel.is_empty() { Ok(()) } else { subscriber.subscribe(channel).await }
    };
    let (subscribed, loaded) = tokio::join!(subscribe, load.query_async(&mut loader));
    subscribed.map_err(|e| error::from_redis(&e))?;
    let said: Vec<InfoDict> = loaded.map_err(|e| error::from_redis(&e))?;
    let Some(replication) = said.first() else { return Ok((socket, None)) };
    if epoch.is_some() && replication.get::<String>("role").as_deref() != Some("master") {
        let text = format!("the sentinels name {host}, which is not a master (yet, or any more)");
        return Err(Error::new(ErrorKind::Unavailable, text));
    }
    let silent = || Error::new(ErrorKind::Protocol, "the node does not say its epoch");
    let epoch = epoch.or_else(|| said.get(1)?.get("cluster_my_epoch")).ok_or_else(silent)?;
    Ok((socket, Some(FailoverEpoch::new(epoch, replication)?)))
}
