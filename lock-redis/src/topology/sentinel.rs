//! Which server is the master: asked of the sentinels at every connect.

use onelock_core::{Error, ErrorKind, Host, Result};
use redis::{Cmd, Pipeline, Value};

use super::majority::majority;
use crate::config::RedisConfig;
use crate::connection::socket::{self, Role};
use crate::{error, reply};

/// The master and the epoch of the failover that made it one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Master {
    pub(crate) host: Host,
    pub(crate) epoch: u64,
}

/// The newest master that the sentinels know.
///
/// # Errors
/// [`ErrorKind::Unavailable`] when no sentinel answers, or none knows the name.
pub(crate) async fn find(config: &RedisConfig, name: &str) -> Result<Master> {
    let answers = majority(config.hosts.iter().map(|host| ask(config, host, name)).collect()).await?;
    let newest = answers.into_iter().max_by_key(|master| master.epoch);
    newest.ok_or_else(|| Error::new(ErrorKind::Unavailable, "no sentinel answers"))
}

async fn ask(config: &RedisConfig, host: &Host, name: &str) -> Result<Master> {
    let said = |e: Error| Error::new(e.kind(), format!("sentinel {host}: {e}"));
    let connection = socket::open(config, host, Role::Seeker, redis::AsyncConnectionConfig::new()).await;
    let connection = connection.map_err(said)?;
    let command = |verb: &str| {
        let mut command = Cmd::new();
        command.arg("SENTINEL").arg(verb).arg(name);
        command
    };
    // The address counts for the epoch that is the same before and after it was read. (`MASTER` itself has an address,
    // too, but while a failover is under way that is the old master's beside the new epoch.)
    let mut pipeline = Pipeline::with_capacity(3);
    pipeline
        .add_command(command("MASTER"))
        .add_command(command("GET-MASTER-ADDR-BY-NAME"))
        .add_command(command("MASTER"));
    let answers = connection
        .requests
        .clone()
        .send_packed_commands(&pipeline, 0, 3)
        .await
        .map_err(|e| said(error::from_redis(&e)))?;
    let [before, address, after] = &answers[..] else {
        return Err(said(Error::new(ErrorKind::Protocol, "another number of answers than asked for")));
    };
    let epoch = epoch(before).map_err(said)?;
    if epoch != self::epoch(after).map_err(said)? {
        return Err(said(Error::new(ErrorKind::Unavailable, "a failover is under way")));
    }
    let host = address_of(address).map_err(said)?;
    Ok(Master { host, epoch })
}

fn epoch(answer: &Value) -> Result<u64> {
    if let Value::ServerError(e) = answer {
        let error = error::from_server(e.code(), e.details().unwrap_or_default());
        let unknown = e.details().is_some_and(|text| text.contains("No such master"));
        let text = "it watches no master of this name";
        return Err(if unknown { Error::new(ErrorKind::Unavailable, text) } else { error });
    }
    let bad = || Error::new(ErrorKind::Protocol, "its answer has no epoch");
    let find = |mut pairs: Box<dyn Iterator<Item = (&Value, &Value)> + '_>| {
        pairs
            .find(|(key, _)| reply::string(key).is_ok_and(|key| key == "config-epoch"))
            .map(|(_, value)| value.clone())
    };
    let value = match answer {
        Value::Map(pairs) => find(Box::new(pairs.iter().map(|(key, value)| (key, value)))),
        Value::Array(items) => find(Box::new(items.chunks_exact(2).map(|pair| (&pair[0], &pair[1])))),
        _ => None,
    };
    match value.ok_or_else(bad)? {
        Value::Int(epoch) => u64::try_from(epoch).map_err(|_| bad()),
        text => reply::string(&text)?.parse().map_err(|_| bad()),
    }
}

fn address_of(answer: &Value) -> Result<Host> {
    let bad = || Error::new(ErrorKind::Unavailable, "it knows no address of the master");
    if let Value::ServerError(e) = answer {
        return Err(error::from_server(e.code(), e.details().unwrap_or_default()));
    }
    let Value::Array(parts) = answer else { return Err(bad()) };
    let [host, port] = &parts[..] else { return Err(bad()) };
    Ok(Host::new(reply::string(host)?, reply::string(port)?.parse().map_err(|_| bad())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn answers_are_read_in_both_protocols() {
        let flat = Value::Array(vec![text("port"), text("7"), text("config-epoch"), text("12")]);
        let map = Value::Map(vec![(text("port"), text("7")), (text("config-epoch"), text("12"))]);
        assert_eq!((epoch(&flat).unwrap(), epoch(&map).unwrap()), (12, 12));
        for bad in [
            Value::Nil,
            Value::Array(vec![text("config-epoch")]),
            Value::Map(vec![(text("config-epoch"), text("-1"))]),
        ] {
            assert!(epoch(&bad).is_err(), "{bad:?}");
        }
        assert_eq!(address_of(&Value::Array(vec![text("::1"), text("7")])).unwrap(), Host::new("::1", 7));
        for bad in [Value::Nil, Value::Array(vec![text("h")]), Value::Array(vec![text("h"), text("x")])] {
            assert!(address_of(&bad).is_err(), "{bad:?}");
        }
    }
}
