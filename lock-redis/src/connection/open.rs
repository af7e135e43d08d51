//! Opens a connection: finds the server, subscribes the inbox, loads the scripts, learns the epoch of its numbers.

use onelock_core::{Error, ErrorKind, Host, Result};
use redis::{AsyncConnectionConfig, Pipeline, PushInfo, Value};

use super::socket::{self, Role, Socket};
use crate::config::RedisConfig;
use crate::topology::epoch::{Fence, field};
use crate::topology::sentinel;
use crate::{error, reply, scripts};

/// Which server a connection leads to.
#[derive(Debug)]
pub(crate) enum Target {
    /// The one at this address.
    Server(Host),
    /// Whichever the sentinels call the master of this name.
    Master(String),
    /// A node of a cluster.
    Node(Host),
}

/// A connection on which pushes come, and what its joins must prove, where a replica can be promoted.
pub(super) async fn open(
    config: &RedisConfig,
    target: &Target,
    channel: &str,
    pushed: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<(Socket, Option<Fence>)> {
    let (host, epoch) = match target {
        Target::Server(host) | Target::Node(host) => (host.clone(), None),
        Target::Master(name) => {
            let master = sentinel::find(config, name).await?;
            (master.host, Some(master.epoch))
        }
    };
    let settings =
        AsyncConnectionConfig::new().set_pipeline_buffer_size(1024).set_push_sender(move |push: PushInfo| {
            pushed(push);
            Ok::<(), redis::aio::SendError>(())
        });
    let socket = socket::open(config, &host, Role::Locker, settings).await?;
    let scripts = scripts::of(config.layout);
    let mut load = Pipeline::with_capacity(scripts.len() + 3);
    for script in scripts {
        load.add_command(script.load());
    }
    // The epoch is the same before and after the id was read, so the two belong together.
    match target {
        Target::Server(_) => {}
        Target::Master(_) => {
            load.cmd("INFO").arg("replication");
        }
        Target::Node(_) => {
            load.cmd("CLUSTER").arg("INFO").cmd("INFO").arg("replication").cmd("CLUSTER").arg("INFO");
        }
    }
    let (mut subscriber, mut loader) = (socket.requests.clone(), socket.requests.clone());
    let (subscribed, loaded) = tokio::join!(
        async {
            // Nothing is pushed where nobody can wait.
            match channel {
                "" => Ok(()),
                channel => subscriber.subscribe(channel).await,
            }
        },
        loader.send_packed_commands(&load, 0, load.len()),
    );
    subscribed.map_err(|e| error::from_redis(&e))?;
    let loaded = loaded.map_err(|e| error::from_redis(&e))?;
    let loaded: Vec<_> = loaded.into_iter().map(error::sound).collect::<Result<_>>()?;
    let fence = match (&loaded[scripts.len().min(loaded.len())..], epoch) {
        ([], _) => None,
        ([replication], Some(epoch)) => {
            let replication = reply::string(replication)?;
            if field(replication, "role") != Some("master") {
                let text = format!("the sentinels name {host}, which is not a master (yet, or any more)");
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            Some(Fence::new(epoch, replication)?)
        }
        ([before, replication, after], None) => {
            let (before, after) = (own_epoch(before)?, own_epoch(after)?);
            if before != after {
                return Err(Error::new(ErrorKind::Unavailable, format!("{host} is just being promoted")));
            }
            Some(Fence::new(before, reply::string(replication)?)?)
        }
        _ => return Err(super::miscounted()),
    };
    Ok((socket, fence))
}

fn own_epoch(info: &Value) -> Result<u64> {
    let epoch = field(reply::string(info)?, "cluster_my_epoch").and_then(|epoch| epoch.parse().ok());
    epoch.ok_or_else(|| Error::new(ErrorKind::Protocol, "the node does not say its epoch"))
}
