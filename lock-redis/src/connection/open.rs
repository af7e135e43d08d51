//! Opens a connection: finds the server, subscribes the inbox, loads the scripts, learns the epoch of its numbers.

use onelock_core::{Error, ErrorKind, Host, Result};
use redis::{AsyncConnectionConfig, Cmd, Pipeline, PushInfo};

use super::socket::{self, Socket};
use crate::config::{RedisConfig, Topology};
use crate::topology::epoch::{FailoverEpoch, field};
use crate::topology::sentinel;
use crate::{error, reply, scripts};

/// A connection on which pushes come, and what its joins must prove, where a replica can be promoted: to `host`, or to the master
/// that the sentinels name.
pub(super) async fn open(
    config: &RedisConfig,
    host: &Host,
    channel: &str,
    pushed: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<(Socket, Option<FailoverEpoch>)> {
    let (host, epoch) = match &config.topology {
        Topology::Single | Topology::Cluster => (host.clone(), None),
        Topology::Sentinel { master } => {
            let master = sentinel::find(config, master).await?;
            (master.host, Some(master.epoch))
        }
    };
    let settings =
        AsyncConnectionConfig::new().set_pipeline_buffer_size(1024).set_push_sender(move |push: PushInfo| {
            pushed(push);
            Ok::<(), redis::aio::SendError>(())
        });
    let socket = socket::open(config, &host, settings).await?;
    let mut load = Pipeline::with_capacity(scripts::ALL.len() + 3);
    for script in scripts::ALL {
        load.add_command(script.load());
    }
    // A node's id before its epoch: promoted in between it has another id, so that its joins fail and the next connection asks anew.
    let asked: &[&[&str]] = match config.topology {
        Topology::Single => &[],
        Topology::Sentinel { .. } => &[&["INFO", "replication"]],
        Topology::Cluster => &[&["INFO", "replication"], &["CLUSTER", "INFO"]],
    };
    for words in asked {
        load.add_command(Cmd::new().arg(*words).to_owned());
    }
    let (mut subscriber, mut loader) = (socket.requests.clone(), socket.requests.clone());
    let subscribe = async {
        // Nothing is pushed where nobody can wait.
        if channel.is_empty() { Ok(()) } else { subscriber.subscribe(channel).await }
    };
    let (subscribed, loaded) = tokio::join!(subscribe, loader.send_packed_commands(&load, 0, load.len()));
    subscribed.map_err(|e| error::from_redis(&e))?;
    let mut loaded = loaded.map_err(|e| error::from_redis(&e))?;
    let said = loaded.split_off(scripts::ALL.len().min(loaded.len()));
    loaded.into_iter().try_for_each(|answer| error::sound(answer).map(drop))?;
    let said: Vec<String> =
        said.into_iter().map(|answer| reply::read(error::sound(answer)?)).collect::<Result<_>>()?;
    let fence = match (&said[..], epoch) {
        ([], None) => None,
        ([replication], Some(_)) if field(replication, "role") != Some("master") => {
            let text = format!("the sentinels name {host}, which is not a master (yet, or any more)");
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        ([replication], Some(epoch)) => Some(FailoverEpoch::new(epoch, replication)?),
        ([replication, cluster], None) => {
            let epoch = field(cluster, "cluster_my_epoch").and_then(|epoch| epoch.parse().ok());
            let silent = || Error::new(ErrorKind::Protocol, "the node does not say its epoch");
            Some(FailoverEpoch::new(epoch.ok_or_else(silent)?, replication)?)
        }
        _ => return Err(error::miscounted()),
    };
    Ok((socket, fence))
}
