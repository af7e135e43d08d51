//! What a node of a cluster says about the cluster.

use onelock_core::{Error, ErrorKind, Host, Result};
use redis::Value;

use crate::connection::Connection;
use crate::reply;
use crate::topology::epoch::field;

/// Slots that one node serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    first: u16,
    last: u16,
    pub(crate) host: Host,
}

impl Range {
    pub(crate) fn holds(&self, slot: u16) -> bool {
        (self.first..=self.last).contains(&slot)
    }
}

/// The cluster in the eyes of one node.
#[derive(Debug)]
pub(crate) struct ClusterView {
    /// Whether it is in the part of the cluster that serves.
    pub(crate) serves: bool,
    /// The latest epoch it has heard of.
    pub(crate) epoch: u64,
    pub(crate) ranges: Vec<Range>,
}

/// Asks a node.
pub(crate) async fn view(connection: &Connection) -> Result<ClusterView> {
    let [info, slots] = connection.commands([&["CLUSTER", "INFO"], &["CLUSTER", "SLOTS"]]).await?;
    let info = reply::string(&info)?;
    let epoch =
        field(info, "cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).ok_or_else(nonsense)?;
    let here = connection.host().ok_or_else(nonsense)?;
    let mut ranges: Vec<_> =
        reply::items(&slots)?.iter().map(|part| range(part, here)).collect::<Result<_>>()?;
    ranges.sort_by_key(|range| range.first);
    Ok(ClusterView { serves: field(info, "cluster_state") == Some("ok"), epoch, ranges })
}

/// First slot, last slot, the master, its replicas.
fn range(part: &Value, here: &Host) -> Result<Range> {
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = reply::items(part)? else {
        return Err(nonsense());
    };
    let [host, Value::Int(port), ..] = &master[..] else { return Err(nonsense()) };
    // A node that does not know its own address says nothing: it is the one we asked.
    let host = match host {
        Value::Nil => here.host.as_str(),
        text => match reply::string(text)? {
            "" | "?" => here.host.as_str(),
            host => host,
        },
    };
    let number = |n: &i64| u16::try_from(*n).map_err(|_| nonsense());
    Ok(Range { first: number(first)?, last: number(last)?, host: Host::new(host, number(port)?) })
}

fn nonsense() -> Error {
    Error::new(ErrorKind::Protocol, "the node says nothing sensible about its cluster")
}

/// An answer that sends the caller elsewhere; the node has done nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// The slot is served there.
    Moved(There),
    /// It is on its way there: ask there, this once.
    Ask(There),
    /// It is on its way, and only some of the keys are here: those that are may be served.
    Partial,
    /// Nowhere, for the moment.
    Later,
}

/// An address that may lack the host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct There(String, u16);

impl There {
    pub(crate) fn at(self, connection: &Connection) -> Host {
        let host = if self.0.is_empty() { connection.host().map_or("", |host| &host.host) } else { &self.0 };
        Host::new(host, self.1)
    }
}

impl Redirect {
    pub(crate) fn of(answer: &Value) -> Option<Self> {
        let Value::ServerError(e) = answer else { return None };
        let there = || {
            let (host, port) = e.details()?.split(' ').nth(1)?.rsplit_once(':')?;
            Some(There(host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?))
        };
        match e.code() {
            "MOVED" => there().map(Self::Moved),
            "ASK" => there().map(Self::Ask),
            "TRYAGAIN" => Some(Self::Partial),
            "CLUSTERDOWN" => Some(Self::Later),
            _ => None,
        }
    }
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
        assert_eq!(read, Range { first: 5, last: 9, host: Host::new("10.0.0.1", 7) });
        assert!(read.holds(5) && read.holds(9) && !read.holds(4) && !read.holds(10));
        for unknown in [Value::Nil, Value::BulkString(b"".into()), Value::BulkString(b"?".into())] {
            assert_eq!(range(&part(unknown, 7), &here).unwrap().host, Host::new("h", 7));
        }
        for bad in [part(Value::Nil, -1), part(Value::Nil, 70_000), part(Value::Int(1), 7), Value::Nil] {
            assert!(range(&bad, &here).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_answers_that_send_elsewhere_do() {
        let redirect = |text: &str| {
            let error = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
            Redirect::of(&error)
        };
        assert_eq!(
            redirect("MOVED 3999 127.0.0.1:6381"),
            Some(Redirect::Moved(There("127.0.0.1".into(), 6381)))
        );
        assert_eq!(redirect("MOVED 3999 :6381"), Some(Redirect::Moved(There(String::new(), 6381))));
        assert_eq!(redirect("ASK 3999 ::1:6381"), Some(Redirect::Ask(There("::1".into(), 6381))));
        assert_eq!(
            redirect("TRYAGAIN Multiple keys request during rehashing of slot"),
            Some(Redirect::Partial)
        );
        assert_eq!(redirect("CLUSTERDOWN The cluster is down"), Some(Redirect::Later));
        for other in ["MOVED", "MOVED 3999 h", "ERR no", "READONLY no", "CROSSSLOT no"] {
            assert_eq!(redirect(other), None, "{other}");
        }
        assert_eq!(Redirect::of(&Value::Okay), None);
    }
}
