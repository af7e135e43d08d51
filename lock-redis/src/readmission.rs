//! Readmission of a server that is a member of a quorum: its gate.

use std::sync::Arc;

use async_trait::async_trait;
use onelock_core::quorum::{Gate, GateView, MemberGate};
use onelock_core::{Result, StoreUrl};
use redis::FromRedisValue;

use crate::config::{self, RedisConfig};
use crate::keys::{BUCKETS, counter, gate};
use crate::reply::{self, Answer};
use crate::scripts;
use crate::topology::Servers;
use crate::wait::Inbox;

/// Where the token epoch begins in a token, and the bits of the number below it.
const EPOCH: u32 = 48;
const NUMBER: i64 = (1 << EPOCH) - 1;

/// Looks at and opens the gate of one server. It connects anew each time: that is rare.
#[derive(Debug)]
pub struct RedisGate {
    config: Arc<RedisConfig>,
}

impl RedisGate {
    /// The gate that a URL asks for, if it asks for one; what a quorum is opened with for its members on Redis.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](onelock_core::ErrorKind::InvalidConfig) for a URL that cannot work.
    pub fn of_url(url: &StoreUrl) -> Result<MemberGate> {
        let config = RedisConfig::try_from(url.clone())?;
        match config.gate {
            config::Gate::None => Ok(None),
            config::Gate::RunId => Ok(Some(Arc::new(Self::new(config)?))),
        }
    }

    /// The gate of the server of `config`, which must ask for one; its backends must be made with the same prefix and
    /// [`gate`](RedisConfig::gate). Does not connect.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](onelock_core::ErrorKind::InvalidConfig) for a configuration that cannot work or asks for no gate.
    pub fn new(config: RedisConfig) -> Result<Self> {
        config.check()?;
        if config.gate == config::Gate::None {
            return Err(config::bad("this configuration asks for no gate"));
        }
        Ok(Self { config: Arc::new(config) })
    }

    /// The one script, with the gate and all counters.
    async fn call<T: FromRedisValue>(&self, opened: Option<(&str, i64, i64)>) -> Result<T> {
        let prefix = &self.config.namespace;
        let counters = (0..BUCKETS).map(|bucket| counter(prefix, bucket));
        let keys: Vec<_> = [gate(prefix)].into_iter().chain(counters).collect();
        let mut command = scripts::GATE.call(&keys.iter().map(String::as_str).collect::<Vec<_>>());
        command.arg(opened);
        let servers = Servers::new(&self.config, &Arc::new(Inbox::new(String::new(), false)));
        let answer = servers.call(0, &scripts::GATE, &command).await;
        answer
            .and_then(Answer::value)
            .and_then(reply::read)
            .map_err(|e| e.during("gate").at(self.config.address()))
    }
}

#[async_trait]
impl Gate for RedisGate {
    async fn look(&self) -> Result<GateView> {
        let (incarnation, open, number, epoch): (_, _, i64, i64) = self.call(None).await?;
        Ok(GateView { incarnation, open, highest: number.max(epoch << EPOCH | number & NUMBER) })
    }

    async fn open(&self, incarnation: &str, floor: i64) -> Result<bool> {
        let floor = floor.max(0);
        self.call(Some((incarnation, floor & NUMBER, floor >> EPOCH))).await
    }
}
