//! `SET NX PX` and a script that compares and deletes, by one connection.

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use onelock::HolderId;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Value};

use crate::networked::Way;
use crate::plain::{self, Plain};
use crate::subject::{Ask, Client, Failure, Lock, Need};

pub(super) const DRIVER: &str = "redis 1.8";

const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

pub(super) struct Floor;

struct Connection {
    connection: MultiplexedConnection,
    release: String,
    lease: u128,
}

#[async_trait]
impl Way for Floor {
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<std::sync::Arc<dyn Client>, Failure> {
        let client = redis::Client::open(format!("redis://{server}/?protocol=resp3"))?;
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024);
        let mut connection = client.get_multiplexed_async_connection_with_config(&settings).await?;
        let release = redis::cmd("SCRIPT").arg("LOAD").arg(RELEASE).query_async(&mut connection).await?;
        Ok(std::sync::Arc::new(Connection { connection, release, lease: lease.as_millis() }))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        let can = matches!(need, Need::Try | Need::Ping);
        (!can).then(|| "the two bare requests take a lock and give it back".to_owned())
    }
}

#[async_trait]
impl Client for Connection {
    fn prepare(&self, ask: &Ask<'_>) -> Result<std::sync::Arc<dyn Lock>, Failure> {
        let key = format!("onelock-floor:{}", ask.name);
        let (connection, release, lease) =
            (self.connection.clone(), self.release.clone(), self.lease.to_string());
        Ok(plain::lock(Name { connection, release, key, lease }))
    }

    async fn ping(&self) -> Result<bool, Failure> {
        let mut ping = Cmd::new();
        ping.arg("PING");
        self.connection.clone().send_packed_command(&ping).await?;
        Ok(true)
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}

struct Name {
    connection: MultiplexedConnection,
    release: String,
    key: String,
    lease: String,
}

impl Plain for Name {
    type Kept = String;

    async fn take(&self, _: bool) -> Result<Option<String>, Failure> {
        let holder = HolderId::random()?.to_hex();
        let mut command = Cmd::new();
        command.arg("SET").arg(&self.key).arg(&holder).arg("NX").arg("PX").arg(&self.lease);
        let answer = self.connection.clone().send_packed_command(&command).await?;
        Ok((answer == Value::Okay).then_some(holder))
    }

    async fn give_back(&self, holder: String) -> Result<(), Failure> {
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&self.release).arg(1).arg(&self.key).arg(&holder);
        match self.connection.clone().send_packed_command(&command).await? {
            Value::Int(1) => Ok(()),
            other => Err(format!("the lock was not held any more: {other:?}").into()),
        }
    }
}
