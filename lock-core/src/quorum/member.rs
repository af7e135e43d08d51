//! A member that may be unreachable when the client starts: it is opened when it is there.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::combined;
use crate::around::through::{Through, Way};
use crate::backend::{Backend, Info};
use crate::capabilities::Capabilities;
use crate::driver::{Context, Driver};
use crate::error::{Error, ErrorKind, Result};
use crate::url::StoreUrl;

/// The least time between two attempts to open a member that is not there.
const PAUSE: Duration = Duration::from_secs(1);

/// One store of a quorum, by URL.
#[derive(Debug)]
pub(super) struct Member {
    driver: Driver,
    url: StoreUrl,
    context: Context,
    backend: OnceCell<Arc<dyn Backend>>,
    /// What the quorum is at work with, once it is.
    counted_on: OnceLock<Capabilities>,
    /// The last failure to open it, and when.
    failed: tokio::sync::Mutex<Option<(Instant, Error)>>,
}

impl Member {
    pub(super) fn new(driver: Driver, url: StoreUrl, context: Context) -> Self {
        let failed = tokio::sync::Mutex::new(None);
        Self { driver, url, context, backend: OnceCell::new(), counted_on: OnceLock::new(), failed }
    }

    /// The open store; opening it is tried again at most once a second.
    pub(super) async fn open(&self) -> Result<&Arc<dyn Backend>> {
        if let Some(backend) = self.backend.get() {
            return Ok(backend);
        }
        let Ok(mut failed) = self.failed.try_lock() else {
            let error = Error::new(ErrorKind::Unavailable, "this member is being opened");
            return Err(error.at(self.url.address()).unsent());
        };
        if let Some((when, error)) = failed.as_ref()
            && when.elapsed() < PAUSE
        {
            return Err(error.clone().unsent());
        }
        let open = async || {
            let backend = self.driver.open(self.url.clone(), self.context.clone()).await?;
            self.check(&backend.capabilities())?;
            Ok::<_, Error>(backend)
        };
        let opened = self.backend.get_or_try_init(open).await;
        if let Err(error) = &opened {
            *failed = Some((Instant::now(), error.clone()));
        }
        // Whatever it says, no verb was sent.
        opened.map_err(Error::unsent)
    }

    /// A member that comes late must keep what the quorum has counted on without it.
    fn check(&self, real: &Capabilities) -> Result<()> {
        let Some(counted) = self.counted_on.get() else { return Ok(()) };
        let keeps = [
            ("shared", !counted.shared || real.shared),
            ("fencing", !counted.fencing || real.fencing),
            ("raise", !counted.raise || real.raise),
            ("delay", !counted.delay || real.delay),
            ("max_lease", real.max_lease >= counted.max_lease),
            // Deadlines leave this much room for entries that end early.
            ("granularity", real.granularity <= counted.granularity),
        ];
        match keeps.into_iter().find(|(_, kept)| !kept) {
            None => Ok(()),
            Some((what, _)) => {
                let text =
                    format!("this member came late, and its `{what}` is less than the quorum counts on");
                Err(Error::new(ErrorKind::Unsupported, text).at(self.url.address()))
            }
        }
    }
}

#[async_trait]
impl Way for Member {
    fn info(&self) -> Info {
        Info::new(self.url.scheme.clone(), self.url.address())
    }

    fn capabilities(&self) -> Capabilities {
        self.backend.get().map_or(self.driver.capabilities, |backend| backend.capabilities())
    }

    async fn store(&self) -> Result<Arc<dyn Backend>> {
        self.open().await.cloned()
    }

    async fn close(&self) -> Result<()> {
        match self.backend.get() {
            Some(backend) => backend.close().await,
            None => Ok(()),
        }
    }
}

/// The driver of a member, by the scheme of its URL.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a malformed URL, an unknown scheme or option.
pub(super) fn read(nth: usize, text: &str, drivers: &[Driver]) -> Result<(Driver, StoreUrl)> {
    let named = |error: Error| Error::new(error.kind(), format!("member {nth}: {error}"));
    let url: StoreUrl = text.parse().map_err(named)?;
    let driver = drivers.iter().find(|driver| driver.schemes.contains(&url.scheme.as_str()));
    let Some(driver) = driver else {
        let text = format!("member {nth}: this build has no store `{}` for a quorum", url.scheme);
        return Err(Error::new(ErrorKind::InvalidConfig, text));
    };
    url.check_options(&[driver.options]).map_err(named)?;
    Ok((*driver, url))
}

/// The members by these drivers; a majority must open now, the others may come later.
///
/// # Errors
/// What opening says when that fails on a majority, or when a URL can never work.
pub(super) async fn open_all(
    members: Vec<(Driver, StoreUrl)>,
    context: &Context,
) -> Result<Vec<Arc<Through<Member>>>> {
    let member = |(driver, url)| Arc::new(Through(Member::new(driver, url, context.clone())));
    let members: Vec<_> = members.into_iter().map(member).collect();
    let opening = members.iter().map(|member| {
        let member = Arc::clone(member);
        tokio::spawn(async move { member.0.open().await.map(|_| ()) })
    });
    let (mut open, mut errors) = (0, Vec::new());
    for opened in opening.collect::<Vec<_>>() {
        match opened.await.map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string())).and_then(|r| r) {
            Ok(()) => open += 1,
            // What no retry can help is said at once.
            Err(error) if !error.is_retryable() => return Err(error),
            Err(error) => errors.push(error.to_string()),
        }
    }
    if open <= members.len() / 2 {
        let text = format!("{open} of {} members can be reached: {}", members.len(), errors.join("; "));
        return Err(Error::new(ErrorKind::Unavailable, text));
    }
    let all: Vec<_> = members.iter().map(|member| member.capabilities()).collect();
    let counted = combined(&all);
    members.iter().for_each(|member| _ = member.0.counted_on.set(counted));
    Ok(members)
}
