//! A store that answers everything, and what is left of it behind [`Checked`].

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::backend::{Busy, Ticket};
use crate::holder::HolderId;
use crate::mode::Mode;
use crate::token::TokenEpoch;

/// Says yes to all, closed or not, and remembers how many renewals a call had.
#[derive(Debug)]
struct Yes {
    capabilities: Capabilities,
    batches: Arc<Mutex<Vec<usize>>>,
}

#[async_trait]
impl Backend for Yes {
    fn info(&self) -> Info {
        Info::new("yes", "yes://here")
    }
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
    async fn acquire(&self, _: &Request) -> Result<Standing> {
        Ok(Standing::Busy(Busy::default()))
    }
    async fn wait(&self, _: &Ticket) -> Result<Wake> {
        std::future::pending().await
    }
    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        self.batches.lock().unwrap().push(due.len());
        vec![Err(Error::new(ErrorKind::Unavailable, "the network is down")); due.len()]
    }
    async fn release(&self, _: &Ticket) -> Result<Release> {
        Err(Error::new(ErrorKind::Unavailable, "the network is down"))
    }
    async fn raise(&self, _: &Ticket, _: FencingToken) -> Result<Raise> {
        Ok(Raise::Raised)
    }
    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        Ok(Snapshot::empty(name.clone()))
    }
    async fn list(&self, _: &str, _: &Page) -> Result<Listing> {
        Ok(Listing::default())
    }
    async fn evict(&self, _: &LockName, _: FencingToken) -> Result<Release> {
        Ok(Release::Released)
    }
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

fn store(capabilities: Capabilities) -> (Checked<Yes>, Arc<Mutex<Vec<usize>>>) {
    let batches = Arc::default();
    (Checked::over(Yes { capabilities, batches: Arc::clone(&batches) }), batches)
}

fn request(mode: Mode, delay: Duration) -> Request {
    let (lease, epoch) = (Duration::from_secs(1), TokenEpoch::default());
    let (name, holder) = (LockName::new("n").unwrap(), HolderId::from_u128(7));
    Request::new(name, holder, mode, lease).delay(delay).queue(false).epoch(epoch)
}

fn exclusive() -> Request {
    request(Mode::Exclusive, Duration::ZERO)
}

fn renewals(count: usize) -> Vec<Renewal> {
    let (ticket, lease) = (exclusive().ticket(), Duration::from_secs(1));
    vec![Renewal::new(ticket, lease, lease); count]
}

/// What each verb says, an error by its kind and its text.
async fn verbs(store: &dyn Backend) -> Vec<(&'static str, Result<()>)> {
    let (ticket, token) = (exclusive().ticket(), FencingToken::new(1).unwrap());
    vec![
        ("acquire", store.acquire(&exclusive()).await.map(drop)),
        ("renew", store.renew(&renewals(1)).await.remove(0).map(drop)),
        ("release", store.release(&ticket).await.map(drop)),
        ("raise", store.raise(&ticket, token).await.map(drop)),
        ("inspect", store.inspect(&ticket.name).await.map(drop)),
        ("list", store.list("", &Page::first(1).unwrap()).await.map(drop)),
        ("evict", store.evict(&ticket.name, token).await.map(drop)),
    ]
}

#[tokio::test]
async fn a_closed_store_is_not_asked() {
    let (store, batches) = store(Capabilities::of_lines());
    let store = Arc::new(store);
    let waiting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.wait(&exclusive().ticket()).await }
    });
    tokio::task::yield_now().await;
    store.close().await.unwrap();
    store.close().await.unwrap();
    let woken = tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    assert_eq!(woken.unwrap_err().kind(), ErrorKind::Closed);
    for (verb, answer) in verbs(&*store).await {
        let error = answer.unwrap_err();
        assert_eq!(
            (error.kind(), error.verb(), error.store()),
            (ErrorKind::Closed, Some(verb), Some("yes://here"))
        );
    }
    assert_eq!(store.wait(&exclusive().ticket()).await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(batches.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_is_not_declared_is_refused() {
    let (store, _) = store(Capabilities::minimal());
    let refused: Vec<_> = (verbs(&store).await.into_iter())
        .filter(|(_, answer)| answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unsupported))
        .map(|(verb, _)| verb)
        .collect();
    assert_eq!(refused, ["raise", "list"]);
    let permit = Mode::Permit { limit: 2.try_into().unwrap(), weight: 1.try_into().unwrap() };
    for (mode, delay) in
        [(Mode::Shared, Duration::ZERO), (permit, Duration::ZERO), (Mode::Exclusive, Duration::from_secs(1))]
    {
        let error = store.acquire(&request(mode, delay)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{mode:?}");
    }
}

#[tokio::test]
async fn an_error_names_the_verb_and_the_address() {
    let (store, _) = store(Capabilities::of_lines());
    for (verb, answer) in verbs(&store).await {
        let Err(error) = answer else { continue };
        assert!(error.to_string().ends_with(&format!("({verb} at yes://here)")), "{error}");
    }
    let error = store.list("\n", &Page::first(1).unwrap()).await.unwrap_err();
    assert_eq!((error.kind(), error.verb()), (ErrorKind::InvalidName, Some("list")));
}

#[tokio::test]
async fn renewals_come_in_parts() {
    let (store, batches) = store(Capabilities::of_lines().max_batch(4));
    assert_eq!(store.renew(&renewals(10)).await.len(), 10);
    assert!(store.renew(&[]).await.is_empty());
    assert_eq!(*batches.lock().unwrap(), [4, 4, 2]);
    let (none, batches) = self::store(Capabilities::of_lines().max_batch(0));
    assert_eq!(none.renew(&renewals(2)).await.len(), 2);
    assert_eq!(*batches.lock().unwrap(), [1, 1], "nothing panics, and each is asked");
}
