//! The members of a quorum, by URL; one that is unreachable when the client starts is connected to when it is there.

use std::time::Duration;

use super::combined;
use crate::around::lazy::Lazy;
use crate::driver::{Context, Driver};
use crate::error::{Error, ErrorKind, Result};
use crate::toolkit::Layer as _;
use crate::url::StoreUrl;

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
pub(super) async fn open_all(members: Vec<(Driver, StoreUrl)>, context: &Context) -> Result<Vec<Lazy>> {
    let member = |(driver, url)| Lazy::new(driver, url, context.clone(), true);
    let members = members.into_iter().map(member).collect::<Result<Vec<_>>>()?;
    let opening = members.iter().map(|member| {
        let member = member.clone();
        tokio::spawn(async move { member.store().await.map(|_| ()) })
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
    // One that comes late must keep this. How short and how coarse its leases are does not matter: it gives longer ones.
    let counted = combined(&all).min_lease(Duration::MAX).lease_step(Duration::MAX);
    members.iter().for_each(|member| member.counts_on(counted));
    Ok(members)
}
