//! What a node of a cluster says about the cluster.

use std::ops::RangeInclusive;
use std::sync::Arc;

use onelock_core::{Error, ErrorKind, Host, Result};
use redis::{InfoDict, RedisError, Value};

use crate::connection::Connection;
use crate::error;

/// Slots, and the node that serves them.
pub(crate) type Range = (RangeInclusive<u16>, Host);

/// How new a view of the cluster is: whether its node is in the part that serves, and the latest epoch it has heard of.
pub(crate) type Age = (bool, u64);

/// The cluster in the eyes of one node.
pub(crate) async fn view(connection: &Arc<Connection>) -> Result<(Age, Vec<Range>)> {
    let ask = |what| redis::cmd("CLUSTER").arg(what).to_owned();
    let (info, slots) = (ask("INFO"), ask("SLOTS"));
    // The epoch first: the map must not be older than it.
    let (info, slots): (InfoDict, Vec<Value>) =
        tokio::try_join!(biased; connection.query(&info), connection.query(&slots))?;
    let nonsense = || Error::new(ErrorKind::Protocol, "the node says nothing sensible about its cluster");
    let ranges: Option<Vec<_>> = slots.iter().map(|part| range(part, &connection.host)).collect();
    let (epoch, mut ranges) =
        (info.get("cluster_current_epoch").ok_or_else(nonsense)?, ranges.ok_or_else(nonsense)?);
    ranges.sort_by_key(|(slots, _)| *slots.start());
    let serves = info.get::<String>("cluster_state").as_deref() == Some("ok");
    Ok(((serves, epoch), ranges))
}

/// First slot, last slot, the master, its replicas.
fn range(part: &Value, here: &Host) -> Option<Range> {
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = part.as_sequence()? else {
        return None;
    };
    let [host, Value::Int(port), ..] = &master[..] else { return None };
    // A node that does not know its own address says nothing: it is the one we asked.
    let host: Option<String> = redis::from_redis_value_ref(host).ok()?;
    let host = host.filter(|host| !matches!(&**host, "" | "?")).unwrap_or_else(|| here.host.clone());
    let number = |n: &i64| u16::try_from(*n).ok();
    Some((number(first)?..=number(last)?, Host::new(host, number(port)?)))
}

/// Whether an answer sends the caller elsewhere, or says to ask again later; the node has done nothing.
pub(crate) fn is_redirect(answer: &Value) -> bool {
    error::has_code(answer, &["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"])
}

/// Where it sends the caller, if anywhere. `here` has answered, whose host is meant where none is named.
pub(crate) fn there(answer: &Value, here: &Host) -> Option<Host> {
    let Value::ServerError(e) = answer else { return None };
    let error = RedisError::from(e.clone());
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    let host = if matches!(host, "" | "?") { &here.host } else { host.trim_matches(['[', ']']) };
    Some(Host::new(host, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_read_with_and_without_a_host() {
        let here = Host::new("h", 1);
        let part = |host: Value, port: i64| {
            let master = Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".into())]);
            Value::Array(vec![Value::Int(5), Value::Int(9), master, Value::Array(vec![])])
        };
        let read = range(&part(Value::BulkString(b"10.0.0.1".into()), 7), &here).unwrap();
        assert_eq!(read, (5..=9, Host::new("10.0.0.1", 7)));
        for unknown in [Value::Nil, Value::BulkString(b"".into()), Value::BulkString(b"?".into())] {
            assert_eq!(range(&part(unknown, 7), &here).unwrap().1, Host::new("h", 7));
        }
        for bad in [part(Value::Nil, -1), part(Value::Nil, 70_000), part(Value::Array(vec![]), 7), Value::Nil]
        {
            assert!(range(&bad, &here).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn only_answers_that_send_elsewhere_do() {
        let redirect = |text: &str| {
            let error = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
            (is_redirect(&error), there(&error, &Host::new("here", 1)))
        };
        assert_eq!(redirect("MOVED 3999 127.0.0.1:6381"), (true, Some(Host::new("127.0.0.1", 6381))));
        assert_eq!(redirect("MOVED 3999 :6381"), (true, Some(Host::new("here", 6381))));
        assert_eq!(redirect("MOVED 3999 ?:6381"), (true, Some(Host::new("here", 6381))));
        assert_eq!(redirect("ASK 3999 ::1:6381"), (true, Some(Host::new("::1", 6381))));
        for later in
            ["TRYAGAIN Multiple keys request during rehashing of slot", "CLUSTERDOWN The cluster is down"]
        {
            assert_eq!(redirect(later), (true, None));
        }
        for nowhere in ["MOVED", "MOVED 3999 h"] {
            assert_eq!(redirect(nowhere), (true, None), "{nowhere}");
        }
        for other in ["ERR no", "READONLY no", "CROSSSLOT no"] {
            assert_eq!(redirect(other), (false, None), "{other}");
        }
        assert!(!is_redirect(&Value::Okay));
    }
}
