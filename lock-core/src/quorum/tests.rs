use super::*;
use crate::clock::TokioClock;
use crate::memory::{MemoryBackend, MemoryStore};

fn memory() -> Arc<dyn Backend> {
    Arc::new(MemoryBackend::new(&MemoryStore::new(Arc::new(TokioClock::default()))))
}

#[tokio::test]
async fn what_cannot_be_a_quorum_is_refused() {
    let kind = |members, time| Quorum::with_member_timeout(members, time).unwrap_err().kind();
    let second = Duration::from_secs(1);
    assert_eq!(kind(vec![], second), ErrorKind::InvalidConfig);
    assert_eq!(kind(vec![memory()], second), ErrorKind::InvalidConfig);
    assert_eq!(kind((0..16).map(|_| memory()).collect(), second), ErrorKind::InvalidConfig);
    let twice = Quorum::new(vec![memory(), memory()]).unwrap_err().to_string();
    assert!(twice.contains("is a member twice"), "{twice}");
    assert_eq!(kind(vec![memory(), memory()], Duration::ZERO), ErrorKind::InvalidConfig);
    assert_eq!(kind(vec![memory(), memory()], Duration::from_secs(61)), ErrorKind::InvalidConfig);
}

#[test]
fn it_needs_a_runtime() {
    let store: Arc<dyn Backend> = memory();
    let named: Arc<dyn Backend> = Arc::new(Renamed(memory()));
    assert_eq!(Quorum::new(vec![store, named]).unwrap_err().kind(), ErrorKind::Misuse);
}

/// A memory store under another address.
#[derive(Debug)]
struct Renamed(Arc<dyn Backend>);

#[async_trait]
impl Backend for Renamed {
    fn info(&self) -> Info {
        Info::new("memory", "another")
    }
    fn capabilities(&self) -> Capabilities {
        let mut caps = self.0.capabilities();
        caps.raise = false;
        caps.min_lease = Duration::from_millis(1500);
        caps.lease_step = Duration::from_secs(1);
        caps
    }
    async fn acquire(&self, request: &Request) -> Result<Standing> {
        self.0.acquire(request).await
    }
    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        self.0.wait(ticket).await
    }
    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        self.0.renew(due).await
    }
    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        self.0.release(ticket).await
    }
    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        self.0.raise(ticket, token).await
    }
    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.0.inspect(name).await
    }
    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        self.0.list(prefix, page).await
    }
    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        self.0.evict(name, token).await
    }
    async fn close(&self) -> Result<()> {
        self.0.close().await
    }
}

#[tokio::test]
async fn a_member_that_cannot_raise_makes_it_unfenced_and_permits_are_refused() {
    let quorum = Arc::new(Quorum::new(vec![memory(), Arc::new(Renamed(memory()))]).unwrap());
    let caps = quorum.capabilities();
    assert!(!caps.fencing && !caps.raise && !caps.permits && caps.shared);
    assert_eq!((caps.min_lease, caps.lease_step), (Duration::from_secs(2), Duration::from_secs(1)));
    let locks = crate::Locks::builder(quorum).clock(Arc::new(TokioClock::default())).build().unwrap();
    let refused = locks.semaphore("n", 3).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let guard = locks.mutex("n").unwrap().acquire().await.unwrap();
    let refused = guard.token().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "a number that protects nothing: {refused}");
}
