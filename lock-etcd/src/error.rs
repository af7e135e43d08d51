//! What etcd's errors mean for a lock.

use std::error::Error as _;
use std::iter::successors;

use etcd_client::Error as Etcd;
use onelock_core::{Error, ErrorKind};
use tonic::{Code, Status};

/// etcd's answer to a key put on a lease that is gone.
const LEASE_GONE: &str = "requested lease not found";

/// Why a request failed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The lease it named is gone, so nothing happened.
    LeaseGone,
    /// It has more operations or bytes than the server takes, so nothing happened.
    TooLarge(String),
    /// The client has to log in again, so nothing happened.
    StaleToken(String),
    /// Everything else.
    Other(Error),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::LeaseGone => Self::new(ErrorKind::Unavailable, "etcd dropped the lease of a request"),
            Failure::TooLarge(text) => {
                let hint = "its options --max-txn-ops and --max-request-bytes set the limits";
                Self::new(ErrorKind::Full, format!("{text}; {hint}"))
            }
            Failure::StaleToken(text) => Self::new(ErrorKind::Denied, text),
            Failure::Other(error) => error,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Refused by etcd's limits, or by those of its gRPC server.
const LIMITS: [&str; 3] = ["too many operations in txn", "request is too large", "message larger than max"];

/// The token has expired, or users or roles have changed since it was made: a JWT is good for one revision of them. Or there is none,
/// since nobody was asked for a password when the client connected.
const STALE: [&str; 5] = ["invalid auth token", "user name is empty", UNASKED, OLD[0], OLD[1]];

/// The cluster asks nobody for a password.
const UNASKED: &str = "authentication is not enabled";

/// The second is that of etcd before 3.4.22 and 3.5.6.
pub(crate) const OLD: [&str; 2] = ["revision of auth store is old", "revision in header is old"];

/// Reads an error of the driver; `prefix` is what the keys of locks start with.
pub(crate) fn failure(error: Etcd, prefix: &str) -> Failure {
    match &error {
        Etcd::GRpcStatus(status) if says(status, &[LEASE_GONE]) => Failure::LeaseGone,
        // The driver's own word for a ttl of 0.
        Etcd::LeaseKeepAliveError(text) if text == "lease not found" => Failure::LeaseGone,
        Etcd::GRpcStatus(status) if says(status, &LIMITS) => Failure::TooLarge(status.message().to_owned()),
        Etcd::GRpcStatus(status) if status.code() == Code::Unauthenticated || says(status, &STALE) => {
            Failure::StaleToken(status.message().to_owned())
        }
        _ => Failure::Other(read(error, prefix)),
    }
}

pub(crate) fn is_unasked(error: &Etcd) -> bool {
    matches!(error, Etcd::GRpcStatus(status) if says(status, &[UNASKED]))
}

fn says(status: &Status, words: &[&str]) -> bool {
    words.iter().any(|word| status.message().contains(word))
}

fn read(error: Etcd, prefix: &str) -> Error {
    let (kind, mut text, cause) = match &error {
        Etcd::GRpcStatus(status) => (kind_of(status), status.message().to_owned(), status.source()),
        Etcd::InvalidArgs(_) | Etcd::InvalidUri(_) => (ErrorKind::InvalidConfig, error.to_string(), None),
        Etcd::TransportError(cause) => (ErrorKind::Unavailable, error.to_string(), cause.source()),
        _ => (ErrorKind::Unavailable, error.to_string(), None),
    };
    for cause in successors(cause, |&cause| cause.source()).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    match &error {
        // etcd does not say which right on which key.
        Etcd::GRpcStatus(status) if status.code() == Code::PermissionDenied => {
            let keys = if prefix.is_empty() { "the lock's name and a slash" } else { prefix };
            text += &format!("; the user needs a role with `readwrite` on the keys that start with {keys}");
        }
        Etcd::GRpcStatus(status) if kind == ErrorKind::Protocol => {
            text = format!("{:?}: {text}", status.code());
        }
        _ => {}
    }
    Error::new(kind, text)
}

fn kind_of(status: &Status) -> ErrorKind {
    match status.code() {
        Code::PermissionDenied => ErrorKind::Denied,
        // Wrong passwords and missing users come as invalid arguments or failed preconditions.
        Code::InvalidArgument | Code::FailedPrecondition if says(status, &["auth", "user", "password"]) => {
            ErrorKind::Denied
        }
        Code::ResourceExhausted if says(status, &["space", "quota"]) => ErrorKind::Full,
        Code::Unavailable | Code::ResourceExhausted | Code::Aborted => ErrorKind::Unavailable,
        Code::DeadlineExceeded | Code::Cancelled => ErrorKind::Timeout,
        // A connection that breaks inside a request has no code of its own, nor has a change of leaders.
        Code::Unknown | Code::Internal
            if status.source().is_some() || says(status, &["transport", "leader", "raft", "lessor"]) =>
        {
            ErrorKind::Unavailable
        }
        // Another member can.
        Code::FailedPrecondition if says(status, &["learner", "not capable", "not leader"]) => {
            ErrorKind::Unavailable
        }
        _ => ErrorKind::Protocol,
    }
}

/// An answer that makes no sense.
pub(crate) fn protocol(text: &str) -> Error {
    Error::new(ErrorKind::Protocol, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: Code, text: &str) -> ErrorKind {
        Error::from(failure(Etcd::GRpcStatus(Status::new(code, text)), "")).kind()
    }

    #[test]
    fn the_texts_of_etcd_have_their_kinds() {
        let say = |text: &str| format!("etcdserver: {text}");
        assert_eq!(kind(Code::PermissionDenied, &say("permission denied")), ErrorKind::Denied);
        assert_eq!(kind(Code::InvalidArgument, &say("user name is empty")), ErrorKind::Denied);
        assert_eq!(
            kind(Code::InvalidArgument, &say("authentication failed, invalid user ID or password")),
            ErrorKind::Denied
        );
        assert_eq!(kind(Code::Unavailable, &say("no leader")), ErrorKind::Unavailable);
        assert_eq!(kind(Code::ResourceExhausted, &say("mvcc: database space exceeded")), ErrorKind::Full);
        assert_eq!(kind(Code::ResourceExhausted, &say("too many requests")), ErrorKind::Unavailable);
        assert_eq!(kind(Code::DeadlineExceeded, "late"), ErrorKind::Timeout);
        assert_eq!(kind(Code::DataLoss, "?"), ErrorKind::Protocol);
        // What members say of themselves while leaders change, and from 3.6 on a learner.
        for text in ["raft proposal dropped", "raft: stopped", "not a primary lessor"] {
            assert_eq!(kind(Code::Unknown, text), ErrorKind::Unavailable, "{text}");
        }
        for text in ["rpc not supported for learner", "not capable", "not leader"] {
            assert_eq!(kind(Code::FailedPrecondition, &say(text)), ErrorKind::Unavailable, "{text}");
        }
        assert_eq!(kind(Code::InvalidArgument, &say("too many operations in txn request")), ErrorKind::Full);
        for (code, text) in
            [(Code::InvalidArgument, say(OLD[0])), (Code::Unknown, "auth: revision in header is old".into())]
        {
            let old = Etcd::GRpcStatus(Status::new(code, text));
            assert!(matches!(failure(old, ""), Failure::StaleToken(_)));
        }
        let gone = Etcd::GRpcStatus(Status::new(Code::NotFound, say(LEASE_GONE)));
        assert!(matches!(failure(gone, ""), Failure::LeaseGone));
    }
}
