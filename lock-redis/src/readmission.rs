//! Readmission of a server that is a member of a quorum: its gate.

use std::sync::Arc;

use async_trait::async_trait;
use onelock_core::quorum::{Gate, GateView, MemberGate};
use onelock_core::{Error, ErrorKind, Result, StoreUrl};
use redis::Cmd;

use crate::config::{self, RedisConfig};
use crate::connection::Answer;
use crate::keys::{self, BUCKETS, counter};
use crate::reply;
use crate::scripts::{self, Script};
use crate::topology::Servers;
use crate::wait::Inbox;

/// Looks at and opens the gate of one server. It connects anew each time: that is rare.
#[derive(Debug)]
pub struct RedisGate {
    config: Arc<RedisConfig>,
}

impl RedisGate {
    /// The gate that a URL asks for, if it asks for one; what a quorum is opened with for its members on Redis.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a URL that cannot work.
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
    /// [`ErrorKind::InvalidConfig`] for a configuration that cannot work or asks for no gate.
    pub fn new(config: RedisConfig) -> Result<Self> {
        config.check()?;
        if config.gate == config::Gate::None {
            return Err(config::bad("this configuration asks for no gate"));
        }
        Ok(Self { config: Arc::new(config) })
    }

    /// A call with the gate and all counters.
    fn command(&self, script: &Script) -> Cmd {
        let mut command = script.call(BUCKETS as usize + 1);
        command.arg(keys::gate(&self.config.namespace));
        for bucket in 0..BUCKETS {
            command.arg(counter(&self.config.namespace, bucket));
        }
        command
    }

    async fn call(&self, script: &'static Script, command: Cmd) -> Result<redis::Value> {
        let servers = Servers::new(&self.config, &Arc::new(Inbox::new(String::new(), false)));
        let answer = servers.call(0, script, command).await.and_then(Answer::value);
        servers.close();
        answer.map_err(|e| e.during("gate").at(self.config.address()))
    }
}

#[async_trait]
impl Gate for RedisGate {
    async fn look(&self) -> Result<GateView> {
        let answer = self.call(&scripts::GATE_LOOK, self.command(&scripts::GATE_LOOK)).await?;
        let [incarnation, open, highest] = reply::items(&answer)? else {
            return Err(Error::new(ErrorKind::Protocol, "a look at the gate was answered in another way"));
        };
        Ok(GateView {
            incarnation: reply::string(incarnation)?.to_owned(),
            open: reply::integer(open)? == 1,
            highest: reply::integer(highest)?,
        })
    }

    async fn open(&self, incarnation: &str, floor: i64) -> Result<bool> {
        let mut command = self.command(&scripts::GATE_OPEN);
        command.arg(incarnation).arg(floor);
        Ok(reply::integer(&self.call(&scripts::GATE_OPEN, command).await?)? == 1)
    }
}
