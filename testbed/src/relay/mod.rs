//! What lies between a client and its store: a TCP relay that loses, delays and spoils requests and replies.
//!
//! A [`Link`] is what a test holds in its hand; a [`Proxy`] is the relay on it.

mod corruptor;
mod link;
mod listening;
mod proxies;
mod proxy;
mod trigger;

use std::time::Duration;

pub use link::{Counter, Link};
pub use proxies::Proxies;
pub use proxy::{Proxy, Rewrite};
pub use trigger::{Act, Trigger};

/// What happens on the way. A connection whose stream has got a hole is not continued: it ends when the link heals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: all goes through.
    None,
    /// Nothing goes through; what is under way arrives late, when the link heals.
    Stall,
    /// Requests stall as in [`Fault::Stall`]; replies go through.
    StallRequests,
    /// Replies stall as in [`Fault::Stall`]; requests go through, and act.
    StallReplies,
    /// Connections are reset, new ones too.
    Reset,
    /// Requests are lost; replies go through.
    LoseRequests,
    /// Requests go through, their replies are lost.
    LoseReplies,
    /// The server has lost its side of every connection and the client is not told; new connections are taken and never
    /// answered.
    HalfOpen,
    /// Everything takes this much longer, each way.
    Delay(Duration),
    /// Replies take this much longer; requests go through at once.
    DelayReplies(Duration),
    /// No more than this many bytes a second go through, each way.
    Throttle(u64),
    /// Each connection is reset after this many bytes more of replies, wherever in a message that is.
    CutAfter(u64),
    /// The same after this many bytes more of requests.
    CutRequestsAfter(u64),
    /// Replies arrive altered: random choices from this seed.
    Mangle(u64),
}

/// Which way something goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

impl Fault {
    /// Whether what goes this way stalls.
    fn stalls(self, direction: Direction) -> bool {
        match direction {
            Direction::Requests => matches!(self, Self::Stall | Self::StallRequests),
            Direction::Replies => matches!(self, Self::Stall | Self::StallReplies),
        }
    }

    /// How much longer what goes this way takes.
    fn delays(self, direction: Direction) -> Option<Duration> {
        match (self, direction) {
            (Self::Delay(time), _) | (Self::DelayReplies(time), Direction::Replies) => Some(time),
            _ => None,
        }
    }

    /// After how many bytes more of what goes this way a connection is reset.
    fn cuts(self, direction: Direction) -> Option<u64> {
        match (self, direction) {
            (Self::CutAfter(bytes), Direction::Replies) => Some(bytes),
            (Self::CutRequestsAfter(bytes), Direction::Requests) => Some(bytes),
            _ => None,
        }
    }

    /// Whether what goes this way is lost.
    fn loses(self, direction: Direction) -> bool {
        match direction {
            Direction::Requests => self == Self::LoseRequests,
            Direction::Replies => self == Self::LoseReplies,
        }
    }
}
