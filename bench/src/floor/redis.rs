//! The two scripts and the messages of the client's channel, by one connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock::HolderId;
use onelock::redis::raw;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, PushInfo, PushKind, Value};

use super::told::Told;
use crate::networked::Way;
use crate::plain::{self, Plain};
use crate::subject::{Ask, Client, Failure, Lock, Need};

pub(super) const DRIVER: &str = "redis 1.8";

pub(super) struct Floor;

struct Connection {
    connection: MultiplexedConnection,
    channel: Arc<str>,
    told: Arc<Told>,
    lease: u128,
}

#[async_trait]
impl Way for Floor {
    async fn open(&self, server: SocketAddr, lease: Duration) -> Result<Arc<dyn Client>, Failure> {
        let client = redis::Client::open(format!("redis://{server}/?protocol=resp3"))?;
        let told = Arc::new(Told::default());
        let pushed = {
            let told = Arc::clone(&told);
            move |push: PushInfo| {
                if let (PushKind::Message, [_, Value::BulkString(message)]) = (&push.kind, &push.data[..]) {
                    let holder = std::str::from_utf8(message).ok().and_then(|text| text.split_once(' '));
                    holder.into_iter().for_each(|(holder, _)| told.tell(holder));
                }
                Ok::<(), redis::aio::SendError>(())
            }
        };
        let settings = AsyncConnectionConfig::new()
            .set_push_sender(pushed)
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024);
        let mut connection = client.get_multiplexed_async_connection_with_config(&settings).await?;
        for script in raw::load() {
            connection.send_packed_command(&script).await?;
        }
        let channel = format!("onelock:inbox:{}", HolderId::random()?.to_hex());
        connection.subscribe(&channel).await?;
        Ok(Arc::new(Connection { connection, channel: channel.into(), told, lease: lease.as_millis() }))
    }

    fn lacks(&self, need: Need) -> Option<String> {
        super::lacks_waiting(need)
    }
}

#[async_trait]
impl Client for Connection {
    fn prepare(&self, ask: &Ask<'_>) -> Result<Arc<dyn Lock>, Failure> {
        let keys = ["e", "o", "w", "x"].map(|kind| format!("onelock:{{0}}:{kind}:{}", ask.name));
        let (connection, channel) = (self.connection.clone(), Arc::clone(&self.channel));
        let (told, lease) = (Arc::clone(&self.told), self.lease.to_string());
        Ok(plain::lock(Name { connection, channel, told, keys, lease }))
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
    channel: Arc<str>,
    told: Arc<Told>,
    keys: [String; 4],
    lease: String,
}

impl Plain for Name {
    type Kept = String;

    async fn take(&self, wait: bool) -> Result<Option<String>, Failure> {
        let holder = HolderId::random()?.to_hex();
        let mut command = raw::acquire();
        command.arg(&self.keys).arg("onelock:{0}:n").arg(&holder).arg("x").arg(&self.lease).arg(&self.lease);
        command.arg(u8::from(wait)).arg(&*self.channel).arg("floor");
        let told = wait.then(|| self.told.expect(&holder));
        let answer = self.connection.clone().send_packed_command(&command).await?;
        let status = if let Value::Array(answer) = &answer { answer.first() } else { None };
        match (status, told) {
            (Some(Value::Int(1)), _) => {
                self.told.forget(&holder);
                Ok(Some(holder))
            }
            (Some(Value::Int(0)), _) => Ok(None),
            (Some(Value::Int(2)), Some(told)) => Ok(told.await.map(|()| Some(holder))?),
            _ => Err(format!("an answer that is none to an acquire: {answer:?}").into()),
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
