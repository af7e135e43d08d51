//! The shared suite on a quorum of three memory stores.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock_conformance::faults::{Gate, Link, Net, Node};
use onelock_conformance::verdict::Verdict;
use onelock_conformance::{Harness, Need, Store};
use onelock_core::{Backend, Capabilities, Error, ErrorKind, MemoryBackend, MemoryStore, Quorum};

struct Three;

#[async_trait]
impl Harness for Three {
    fn name(&self) -> &'static str {
        "quorum"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::of_lines();
        capabilities.permits = false;
        capabilities.fifo = false;
        capabilities.push = false;
        capabilities.list = false;
        capabilities.resume = false;
        capabilities.durable = false;
        capabilities.granularity = Duration::ZERO;
        capabilities
    }

    fn unit(&self) -> Duration {
        Duration::from_millis(500)
    }

    fn lacks(&self, need: Need) -> Option<String> {
        let why = match need {
            Need::Processes => "the members live in one process",
            Need::Connections | Need::Restart | Need::Pause | Need::Leader => "there is no server",
            Need::Requests => "a verb is a request to each member",
            Need::Network | Need::Altered => "there is no network",
            Need::Foreign => "nothing foreign can get into the members",
            Need::Password | Need::Tls | Need::Unreachable => "there is nothing to connect to",
            Need::WaiterLease => "nobody waits in a line",
            Need::Link
            | Need::WholeNames
            | Need::Epochs
            | Need::Residue
            | Need::Reconnect
            | Need::Line
            | Need::Thousands
            | Need::Can(_) => return None,
        };
        Some(why.to_owned())
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let members = (0..3).map(|_| MemoryStore::new(self.clock())).collect();
        Ok(Box::new(Fresh { members }))
    }

    async fn open(&self, url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        Err(Error::new(ErrorKind::Unsupported, format!("{url}: the members live in one process")))
    }
}

struct Fresh {
    members: Vec<Arc<MemoryStore>>,
}

#[async_trait]
impl Store for Fresh {
    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        let member = |(i, store)| {
            let node = Node::new(Arc::new(MemoryBackend::new(store)), &Net::new(0), format!("member-{i}"));
            Arc::new(node) as Arc<dyn Backend>
        };
        let members = self.members.iter().enumerate().map(member).collect();
        // A busy machine is not a dead member.
        Ok(Arc::new(Quorum::with_member_timeout(members, Duration::from_secs(5))?))
    }

    async fn connect_by(&self, link: &Arc<Link>) -> Verdict<Arc<dyn Backend>> {
        Ok(Arc::new(Gate::new(self.connect().await?, link)))
    }

    async fn residue(&self) -> Verdict<Vec<String>> {
        let left = self.members.iter().filter(|member| member.names() > 0);
        Ok(left.map(|member| format!("{} names", member.names())).collect())
    }

    async fn counters(&self) -> Verdict<u64> {
        Ok(1)
    }
}

fn main() -> ExitCode {
    onelock_conformance::run(Three)
}
