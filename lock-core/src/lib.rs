//! The semantics of onelock, without any store.
//!
//! A lock is a line of leased, numbered entries kept by a store. The holders are the longest prefix of the line whose
//! entries are mutually compatible ([`mode`]). A store implements lock verbs ([`Backend`]); everything else is here.

pub mod around;
pub mod client;
pub mod memory;
pub mod model;
pub mod quorum;
pub mod store;
pub mod toolkit;

pub use client::settings as config;
pub use model::{clock, error, holder, lease, line, mode, name, snapshot, token};
pub use store::{backend, capabilities, driver, url};

pub use around::election::{Election, Leader, Observe, Term};
pub use around::hand_over::HandOver;
pub use around::health::Health;
pub use around::observer::{Event, Observer};
pub use around::progress::{Acquire, Position};
pub use around::risk::Stop;
pub use around::sets::{GuardSet, LockSet};
pub use around::{fence, testing};
pub use backend::{
    Backend, Busy, Grant, Info, Note, Place, Raise, Release, Renewal, Renewed, Request, Standing, Ticket,
    Wake,
};
pub use capabilities::Capabilities;
pub use client::Locks;
pub use client::builder::Builder;
pub use client::guard::{Guard, LossReason};
pub use client::lock::{Lock, RwLock};
pub use client::owner::Owner;
pub use client::retry::Retry;
pub use clock::{BootClock, Clock, Timestamp, TokioClock};
pub use config::Settings;
pub use driver::{Driver, OptionSpec};
pub use error::{Error, ErrorKind, Result};
pub use holder::{HolderId, HolderMap};
pub use memory::{MemoryBackend, MemoryStore};
pub use mode::Mode;
pub use name::LockName;
pub use quorum::Quorum;
pub use snapshot::{EntryView, ForeignView, ListedName, Listing, Page, Snapshot};
pub use token::{FencingToken, TokenEpoch};
pub use toolkit::Credentials;
pub use url::{Host, Secret, StoreUrl};
