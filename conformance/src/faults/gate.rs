//! A gate around a backend, for stores that have no network to cut.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use onelock_core::toolkit::{Layer, Layered};
use onelock_core::{Backend, Error, ErrorKind, Result};

use super::{Act, Fault, Link};

/// How long a call on a cut link takes to fail.
const PATIENCE: Duration = Duration::from_millis(100);

/// What a call is taken to weigh, in bytes each way, where a link is slow.
const SIZE: f64 = 200.0;

/// A backend behind a [`Link`]: fails as a networked store would, and counts the requests.
#[derive(Debug)]
pub struct Gate {
    inner: Arc<dyn Backend>,
    link: Arc<Link>,
}

impl Gate {
    /// Puts `inner` behind `link`.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, link: &Arc<Link>) -> Layered<Self> {
        Layered(Self { inner, link: Arc::clone(link) })
    }

    /// Puts `inner` behind a link whose replies are `late`.
    #[must_use]
    pub fn late(inner: Arc<dyn Backend>, late: Duration) -> Layered<Self> {
        let link = Link::new();
        link.set(Fault::DelayReplies(late));
        Self::new(inner, &link)
    }

    /// What the store told while the link was down arrives when it is up again.
    async fn notified<T>(&self, wait: impl Future<Output = Result<T>>) -> Result<T> {
        let cut = self
            .link
            .until(|fault| matches!(fault, Fault::Reset | Fault::CutAfter(_) | Fault::CutRequestsAfter(_)));
        let woken = tokio::select! {
            biased;
            () = cut => return Err(reset()),
            woken = wait => woken?,
        };
        let passes = |fault| {
            matches!(fault, Fault::None | Fault::Delay(_) | Fault::DelayReplies(_) | Fault::Throttle(_))
        };
        self.link.until(passes).await;
        Ok(woken)
    }

    async fn through<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let fault = self.link.fault();
        if fault != Fault::None {
            self.link.hits.add(1);
        }
        match fault {
            Fault::None => call.await,
            Fault::Reset | Fault::CutRequestsAfter(_) => Err(reset()),
            // Whoever has asked gives up before it arrives, and there is nothing that would keep it until then.
            Fault::Stall | Fault::StallRequests | Fault::LoseRequests | Fault::HalfOpen => {
                tokio::time::sleep(PATIENCE).await;
                Err(no_answer())
            }
            Fault::LoseReplies | Fault::StallReplies => {
                let _lost = call.await;
                tokio::time::sleep(PATIENCE).await;
                Err(no_answer())
            }
            Fault::Delay(time) => both_late(time, call).await,
            Fault::DelayReplies(time) => {
                let answer = call.await;
                tokio::time::sleep(time).await;
                answer
            }
            Fault::Throttle(rate) => {
                both_late(Duration::from_secs_f64(SIZE / rate.max(1) as f64), call).await
            }
            Fault::CutAfter(_) => {
                let _cut = call.await;
                Err(reset())
            }
            Fault::Mangle(_) => {
                let _spoilt = call.await;
                Err(Error::new(ErrorKind::Protocol, "the link has spoilt the reply"))
            }
        }
    }
}

async fn both_late<T>(time: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::sleep(time).await;
    let answer = call.await;
    tokio::time::sleep(time).await;
    answer
}

fn reset() -> Error {
    Error::new(ErrorKind::Unavailable, "the link is cut")
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Timeout, "the link lost the request or its reply")
}

impl Layer for Gate {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn pass<T: Send>(&self, verb: &str, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if verb == "wait" {
            return self.notified(call).await;
        }
        self.link.requests.add(1);
        match self.link.springs(&[], verb.as_bytes()) {
            None => self.through(call).await,
            Some(Act::Reset) => Err(reset()),
            Some(Act::LoseReply) => {
                let _lost = call.await;
                Err(reset())
            }
            Some(Act::HoldRequest) => {
                self.link.released().await;
                self.through(call).await
            }
            Some(Act::HoldReply) => {
                let answer = self.through(call).await;
                self.link.released().await;
                answer
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;
    use crate::ctx::{exclusive, name};
    use onelock_core::{BootClock, MemoryBackend, MemoryStore, Release};
    use onelock_testbed::relay::Trigger;

    /// Through the gate, and beside it.
    fn both() -> (Arc<Link>, Arc<dyn Backend>, Arc<dyn Backend>) {
        let store = MemoryStore::new(Arc::new(BootClock));
        let inner: Arc<dyn Backend> = Arc::new(MemoryBackend::new(&store));
        let link = Link::new();
        (Arc::clone(&link), Arc::new(Gate::new(Arc::clone(&inner), &link)), inner)
    }

    async fn holders(inner: &Arc<dyn Backend>) -> usize {
        inner.inspect(&name("gate").unwrap()).await.unwrap().holders.len()
    }

    #[tokio::test]
    async fn each_fault_fails_as_it_says_and_acts_as_it_says() {
        use ErrorKind::{Protocol, Timeout, Unavailable};
        let table = [
            (Fault::None, None, true),
            (Fault::Stall, Some(Timeout), false),
            (Fault::StallRequests, Some(Timeout), false),
            (Fault::StallReplies, Some(Timeout), true),
            (Fault::Reset, Some(Unavailable), false),
            (Fault::LoseRequests, Some(Timeout), false),
            (Fault::LoseReplies, Some(Timeout), true),
            (Fault::HalfOpen, Some(Timeout), false),
            (Fault::Delay(Duration::from_millis(20)), None, true),
            (Fault::DelayReplies(Duration::from_millis(40)), None, true),
            (Fault::Throttle(10_000), None, true),
            (Fault::CutAfter(9), Some(Unavailable), true),
            (Fault::CutRequestsAfter(9), Some(Unavailable), false),
            (Fault::Mangle(1), Some(Protocol), true),
        ];
        for (fault, kind, acts) in table {
            let (link, gate, inner) = both();
            link.set(fault);
            let began = std::time::Instant::now();
            let answer = gate.acquire(&exclusive(&name("gate").unwrap()).unwrap()).await;
            assert_eq!(answer.err().map(|error| error.kind()), kind, "{fault:?}");
            assert_eq!(holders(&inner).await, usize::from(acts), "{fault:?}: what it did");
            assert_eq!(link.hits.get(), u64::from(fault != Fault::None), "{fault:?}");
            if matches!(fault, Fault::Delay(_) | Fault::DelayReplies(_) | Fault::Throttle(_)) {
                assert!(began.elapsed() >= Duration::from_millis(40), "{fault:?}: not late");
            }
        }
    }

    #[tokio::test]
    async fn a_trigger_strikes_the_verb_it_names() {
        let (link, gate, inner) = both();
        let request = exclusive(&name("gate").unwrap()).unwrap();
        link.arm(Trigger { pattern: b"release".to_vec(), nth: 1, act: Act::LoseReply });
        gate.acquire(&request).await.unwrap();
        assert_eq!(gate.release(&request.ticket()).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(holders(&inner).await, 0, "the release has acted");
        gate.acquire(&request).await.unwrap();
        link.arm(Trigger { pattern: b"release".to_vec(), nth: 1, act: Act::HoldRequest });
        let ticket = request.ticket();
        let mut held = std::pin::pin!(gate.release(&ticket));
        tokio::select! { biased; _ = &mut held => panic!("it is not held"), () = link.struck() => {} }
        assert_eq!(holders(&inner).await, 1, "the release is held");
        link.let_go();
        assert_eq!(held.await.unwrap(), Release::Released);
    }
}
