//! `SET NX PX`, and a script that compares and deletes, by one connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock::HolderId;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Value};

use super::{Pair, client};
use crate::networked::Connector;
use crate::subject::{Client, Failure};

pub(super) const DRIVER: &str = "redis 1.8";

const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

pub(super) struct RedisPair;

#[derive(Clone)]
struct Connection {
    connection: MultiplexedConnection,
    release: Arc<str>,
    lease: u64,
}

#[async_trait]
impl Connector for RedisPair {
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        let driver = redis::Client::open(format!("redis://{server}/?protocol=resp3"))?;
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024);
        let mut connection = driver.get_multiplexed_async_connection_with_config(&settings).await?;
        let release: String =
            redis::cmd("SCRIPT").arg("LOAD").arg(RELEASE).query_async(&mut connection).await?;
        let lease = u64::try_from(lease.as_millis())?;
        Ok(client(Connection { connection, release: release.into(), lease }))
    }
}

impl Pair for Connection {
    type Kept = String;

    async fn take(&self, name: &str) -> Result<Option<String>, Failure> {
        let holder = HolderId::random()?.to_hex();
        let mut set = Cmd::new();
        set.arg("SET").arg(key(name)).arg(&holder).arg("NX").arg("PX").arg(self.lease);
        let answer = self.connection.clone().send_packed_command(&set).await?;
        Ok((answer == Value::Okay).then_some(holder))
    }

    async fn give_back(&self, name: &str, holder: String) -> Result<bool, Failure> {
        let mut delete = Cmd::new();
        delete.arg("EVALSHA").arg(&*self.release).arg(1).arg(key(name)).arg(&holder);
        Ok(self.connection.clone().send_packed_command(&delete).await? == Value::Int(1))
    }

    async fn ping(&self) -> Result<bool, Failure> {
        let mut ping = Cmd::new();
        ping.arg("PING");
        self.connection.clone().send_packed_command(&ping).await?;
        Ok(true)
    }
}

fn key(name: &str) -> String {
    format!("baseline:{name}")
}
