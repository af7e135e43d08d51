//! The two scripts, by one connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock::HolderId;
use onelock::redis::raw;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Value};

use crate::networked::Way;
use crate::plain::{self, Plain};
use crate::subject::{Ask, Client, Failure, Lock, Need};

pub(super) const DRIVER: &str = "redis 1.8";

pub(super) struct Floor;

struct Connection {
    connection: MultiplexedConnection,
    lease: u128,
}

#[async_trait]
impl Way for Floor {
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        let client = redis::Client::open(format!("redis://{server}/?protocol=resp3"))?;
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024);
        let mut connection = client.get_multiplexed_async_connection_with_config(&settings).await?;
        for script in raw::load() {
            connection.send_packed_command(&script).await?;
        }
        Ok(Arc::new(Connection { connection, lease: lease.as_millis() }))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        super::lacks(need)
    }
}

#[async_trait]
impl Client for Connection {
    fn prepare(&self, ask: &Ask<'_>) -> Result<Arc<dyn Lock>, Failure> {
        let keys = ["e", "o", "w", "x"].map(|kind| format!("onelock:{{0}}:{kind}:{}", ask.name));
        Ok(plain::lock(Name { connection: self.connection.clone(), keys, lease: self.lease.to_string() }))
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
    keys: [String; 4],
    lease: String,
}

impl Plain for Name {
    type Kept = String;

    async fn take(&self, wait: bool) -> Result<Option<String>, Failure> {
        let holder = HolderId::random()?.to_hex();
        let mut command = raw::acquire();
        command.arg(&self.keys).arg("onelock:{0}:n").arg(&holder).arg("x").arg(&self.lease).arg(&self.lease);
        command.arg(u8::from(wait)).arg("onelock:inbox:floor").arg("floor");
        match self.connection.clone().send_packed_command(&command).await? {
            Value::Array(answer) if answer.first() == Some(&Value::Int(1)) => Ok(Some(holder)),
            Value::Array(answer) if answer.first() == Some(&Value::Int(0)) => Ok(None),
            other => Err(format!("an answer that is none to a free lock: {other:?}").into()),
        }
    }

    async fn give_back(&self, holder: String) -> Result<(), Failure> {
        let mut command = raw::release();
        command.arg(&self.keys).arg(&holder);
        match self.connection.clone().send_packed_command(&command).await? {
            Value::Int(1) => Ok(()),
            other => Err(format!("the lock was not held any more: {other:?}").into()),
        }
    }
}
