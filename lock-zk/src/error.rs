//! What the client library says, in the words of the core.

use onelock_core::{Error, ErrorKind};
use zookeeper_client as zk;

/// The error of `doing` something at `path`.
pub(crate) fn failed(error: zk::Error, doing: &str, path: &str) -> Error {
    use zk::Error as E;
    let (kind, why) = match &error {
        E::NoAuth => (ErrorKind::Denied, format!("the user lacks {}", right(doing, path))),
        E::AuthFailed => (ErrorKind::Denied, "the server refused the credentials".into()),
        E::InvalidAcl => (ErrorKind::Denied, "the server refused the access list".into()),
        E::Timeout => (ErrorKind::Timeout, "no answer in time".into()),
        E::ConnectionLoss => (ErrorKind::Unavailable, "the connection was lost".into()),
        E::SessionExpired | E::SessionMoved => (ErrorKind::Unavailable, "the session has ended".into()),
        E::Throttled => (ErrorKind::Unavailable, "the server is overloaded".into()),
        E::NotReadOnly => (ErrorKind::Unavailable, "the server has no quorum".into()),
        E::QuotaExceeded => (ErrorKind::Full, "the quota of the path is used up".into()),
        // By us, because it answered nothing any more or its client is being closed: the request may have got through.
        E::ClientClosed => (ErrorKind::Unavailable, "the session was closed under the request".into()),
        E::Unimplemented => (
            ErrorKind::Unsupported,
            "the server does not know the request: ZooKeeper 3.6 or later is needed".into(),
        ),
        E::NoChildrenForEphemerals => {
            (ErrorKind::Foreign, "an ephemeral node stands where the lock's node would".into())
        }
        // What the operating system says about the connection.
        E::Custom(cause) => (ErrorKind::Unavailable, cause.to_string()),
        other => (ErrorKind::Protocol, other.to_string()),
    };
    Error::new(kind, format!("could not {doing} {path}: {why}")).caused_by(error)
}

/// The right that `doing` something at `path` needs, as access lists name it. Nodes are made and deleted by a right on
/// the node above.
fn right(doing: &str, path: &str) -> String {
    let above = match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((above, _)) => above,
    };
    match doing {
        "join" => format!("CREATE on {path}"),
        "create" => format!("CREATE on {above}"),
        "delete" => format!("DELETE on {above}"),
        _ => format!("READ on {path}"),
    }
}
