//! The table of all cases.

use std::time::Duration;

use futures_util::future::BoxFuture;
use onelock_core::Capabilities;

use crate::ctx::Ctx;
use crate::verdict::Verdict;

/// The body of a case.
pub type Body = for<'a> fn(&'a Ctx) -> BoxFuture<'a, Verdict>;

/// One case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name, unique in the table.
    pub name: &'static str,
    /// The numbers of the clauses of the `Backend` contract it proves; empty for what the client proves over any store.
    pub clauses: &'static [u8],
    /// What it needs of a store.
    pub needs: &'static [Need],
    /// A case that has not ended by then is a failure.
    pub limit: Duration,
    /// What it does.
    pub body: Body,
}

/// What a case needs of a store beyond taking an exclusive lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The capability of this name.
    Can(&'static str),
    /// Clients in processes of their own.
    Processes,
    /// The store counts the requests it serves.
    Requests,
    /// The store counts the connections it has.
    Connections,
    /// A client whose way to the store can be cut.
    Link,
    /// A network between clients, in whatever process, and the store, and a link on it.
    Network,
    /// A driver that an altered reply cannot end the process of.
    Altered,
    /// The store's server can be restarted.
    Restart,
    /// The store's server can be stopped and resumed.
    Pause,
    /// The store can be several servers, of which the one that leads can be stopped and resumed alone.
    Leader,
    /// Names up to the longest are the case's own.
    WholeNames,
    /// The token epoch of all that is in the store is the case's own.
    Epochs,
    /// What the store holds can be counted.
    Residue,
    /// What is not ours can be put where ours would be.
    Foreign,
    /// The store asks for a password.
    Password,
    /// The store can be reached over TLS.
    Tls,
    /// A URL of this store that leads nowhere.
    Unreachable,
    /// The lease of a waiter that is cut off ends by itself, however long a holder's would be.
    WaiterLease,
    /// An entry outlives the connection it was made on.
    Reconnect,
    /// A client holds thousands of locks at once.
    Thousands,
    /// A line that shows who waits, each with a number from when it joined.
    Line,
}

impl Need {
    /// Why a store with these capabilities cannot serve it; `None` when it can, or when that is for the harness to say.
    #[must_use]
    pub fn missing(self, capabilities: &Capabilities) -> Option<String> {
        let name = match self {
            Self::Can(name) => name,
            Self::Line => "fifo",
            _ => return None,
        };
        let has = capabilities.flags().iter().any(|(flag, on)| *flag == name && *on);
        (!has).then(|| format!("the store does not offer `{name}`"))
    }
}

/// All cases, in the order they are listed.
pub fn all() -> impl Iterator<Item = &'static Case> {
    crate::cases::ALL.iter().copied().flatten()
}

/// Makes the table of a module: `name: clauses [..], needs [..], seconds;`.
macro_rules! table {
    ($($name:ident: [$($clause:literal),*], [$($need:expr),*], $seconds:literal;)*) => {
        /// The cases of this module.
        pub(super) const TABLE: &[crate::case::Case] = &[$(crate::case::Case {
            name: stringify!($name),
            clauses: &[$($clause),*],
            needs: &[$($need),*],
            limit: std::time::Duration::from_secs($seconds),
            body: |ctx| Box::pin($name(ctx)),
        }),*];
    };
}
pub(crate) use table;
