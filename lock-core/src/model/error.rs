//! One error type for every store: what kind, where, and whether a retry helps.

use std::fmt;
use std::sync::Arc;

use crate::model::loss::LossReason;

/// The result of everything that can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, for programs. New kinds may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A lock name, a prefix or a note that no store may be asked for.
    InvalidName,
    /// A lease, lock-delay or hold time out of range.
    InvalidLease,
    /// A URL, an option or a configuration that cannot be used.
    InvalidConfig,
    /// This store cannot do what was asked; the message says which can.
    Unsupported,
    /// The store could not be reached or could not serve now. A retry may help.
    Unavailable,
    /// The store did not answer in time: whether it acted is not known. A retry may help. An acquire that was under way may still
    /// join; its entry ends with its lease at the latest.
    Timeout,
    /// The store refused the credentials or a right is missing.
    Denied,
    /// What is in the store under our keys was not written by us.
    Foreign,
    /// The store answered something that makes no sense.
    Protocol,
    /// The store is full, or a limit was reached.
    Full,
    /// The same owner holds or asks for this name in a way that would wait for itself.
    WouldDeadlock,
    /// The lock stayed busy for as many attempts as the retry policy allows.
    Busy,
    /// The lock is not held any more.
    Lost,
    /// The entry was removed from the line while it waited, by an operator or because the store forgot it. Asking again
    /// joins the end of the line.
    Evicted,
    /// The resource has seen a larger fencing token; see [`fence`](crate::around::fence).
    Stale,
    /// This client has been closed.
    Closed,
    /// The call was made in a way that cannot work (no runtime, an owner of another client).
    Misuse,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidName => "invalid name",
            Self::InvalidLease => "invalid lease",
            Self::InvalidConfig => "invalid configuration",
            Self::Unsupported => "unsupported",
            Self::Unavailable => "store unavailable",
            Self::Timeout => "no answer in time",
            Self::Denied => "access denied",
            Self::Foreign => "foreign data",
            Self::Protocol => "unexpected answer",
            Self::Full => "store full",
            Self::WouldDeadlock => "would deadlock",
            Self::Busy => "lock busy",
            Self::Lost => "lock lost",
            Self::Evicted => "removed from the line",
            Self::Stale => "stale token",
            Self::Closed => "client closed",
            Self::Misuse => "misuse",
        })
    }
}

type Source = Arc<dyn std::error::Error + Send + Sync + 'static>;

/// An error of this library. Cheap to clone; never shows a password.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    operation: Option<&'static str>,
    store: Option<String>,
    source: Option<Source>,
    unsent: bool,
    queued: bool,
    loss: Option<LossReason>,
    features: &'static [&'static str],
}

impl Error {
    /// An error of `kind` that says `message`.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            operation: None,
            store: None,
            source: None,
            unsent: false,
            queued: false,
            loss: None,
            features: &[],
        }))
    }

    /// Says that `what` is not in this build, and the cargo features of which any one adds it. Of kind
    /// [`ErrorKind::InvalidConfig`].
    ///
    /// ```
    /// use onelock::{Error, ErrorKind};
    ///
    /// let error = Error::not_compiled("TLS to Redis", &["tls-ring", "tls-aws-lc"]);
    /// assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    /// assert!(error.to_string().ends_with("add the cargo feature `tls-ring` or `tls-aws-lc`"));
    /// assert_eq!(error.missing_features(), ["tls-ring", "tls-aws-lc"]);
    /// ```
    #[must_use]
    pub fn not_compiled(what: impl fmt::Display, features: &'static [&'static str]) -> Self {
        let named: Vec<_> = features.iter().map(|feature| format!("`{feature}`")).collect();
        let text = format!("{what} is not compiled in; add the cargo feature {}", named.join(" or "));
        let mut error = Self::new(ErrorKind::InvalidConfig, text);
        error.0.features = features;
        error
    }

    /// The cargo features of which one is missing, for what [is not compiled in](Self::not_compiled); else empty.
    #[must_use]
    pub fn missing_features(&self) -> &'static [&'static str] {
        self.0.features
    }

    /// Names the verb that failed.
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.0.operation.get_or_insert(operation);
        self
    }

    /// Names the store by its redacted address.
    #[must_use]
    pub fn at(mut self, store: impl Into<String>) -> Self {
        self.0.store.get_or_insert_with(|| store.into());
        self
    }

    /// Says that the request never left: the store cannot have acted, so there is nothing to clean up.
    #[must_use]
    pub fn unsent(mut self) -> Self {
        self.0.unsent = true;
        self
    }

    /// Keeps the error beneath. Its text must not hold a secret.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into().into());
        self
    }

    /// Adds a remark to the message.
    pub(crate) fn noting(mut self, remark: &str) -> Self {
        self.0.message.push_str("; ");
        self.0.message.push_str(remark);
        self
    }

    /// Says why a lock was lost.
    #[must_use]
    pub fn lost_by(mut self, reason: LossReason) -> Self {
        self.0.loss = Some(reason);
        self
    }

    /// Why the lock was lost, for an error of kind [`ErrorKind::Lost`] of a guard.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.0.loss
    }

    /// The call that failed, such as `acquire` or `release`, where it is known.
    #[must_use]
    pub fn verb(&self) -> Option<&'static str> {
        self.0.operation
    }

    /// The address of the store, without user, password and options, where it is known.
    #[must_use]
    pub fn store(&self) -> Option<&str> {
        self.0.store.as_deref()
    }

    /// What went wrong, for programs.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Says that it was [not sent](Self::unsent) because other requests of this client came first, and the store answers those: an
    /// acquisition goes on asking.
    ///
    /// ```
    /// use onelock::{Error, ErrorKind};
    ///
    /// let error = Error::new(ErrorKind::Unavailable, "every connection stayed busy").queued();
    /// assert!(error.is_retryable() && !error.is_unclear());
    /// ```
    #[must_use]
    pub fn queued(mut self) -> Self {
        (self.0.unsent, self.0.queued) = (true, true);
        self
    }

    pub(crate) fn was_queued(&self) -> bool {
        self.0.queued
    }

    /// Whether asking again later may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Unavailable | ErrorKind::Timeout)
    }

    /// Whether the store may have acted although this call failed.
    ///
    /// True for everything that was not refused before or by the store itself, and not [`Error::unsent`]; the core
    /// then treats an acquire as "not held, perhaps in line" and cleans up.
    #[must_use]
    pub fn is_unclear(&self) -> bool {
        !self.0.unsent
            && matches!(self.0.kind, ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Protocol)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        write!(f, "{}: {}", inner.kind, inner.message)?;
        match (inner.operation, &inner.store) {
            (Some(operation), Some(store)) => write!(f, " ({operation} at {store})"),
            (Some(operation), None) => write!(f, " ({operation})"),
            (None, Some(store)) => write!(f, " (at {store})"),
            (None, None) => Ok(()),
        }
    }
}

/// Its text and that of its causes, because a `main` that answers an error prints this.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        let mut cause = std::error::Error::source(self);
        while let Some(below) = cause {
            write!(f, "; because: {below}")?;
            cause = below.source();
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|s| &**s as _)
    }
}
