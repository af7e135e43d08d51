//! A quorum by URL.

use std::sync::Arc;
use std::time::Duration;

use super::{GateOf, Quorum, check, member};
use crate::backend::{Backend, Info};
use crate::capabilities::Capabilities;
use crate::driver::{Context, Driver};
use crate::error::{Error, ErrorKind, Result};
use crate::store::options::OptionSpec;
use crate::toolkit::Layered;
use crate::url::StoreUrl;

/// The options of a `quorum:` URL, beside those of every store.
pub const OPTIONS: &[OptionSpec] = QuorumConfig::OPTIONS;

crate::toolkit::options! {
    struct QuorumConfig {}
    options {
        /// The URLs of the members, separated by `|`; in them `&` and `%` are written %26 and %25.
        members: Option<String> = "none",
        /// How long a member may take to answer.
        member_timeout: Duration = "200ms",
        /// How long a member with a gate stays away after a restart; no lease may be longer than nine tenths of it.
        quarantine: Duration = "1m",
    }
}

/// What a quorum of stores that can do everything can do.
pub const CAPABILITIES: Capabilities =
    Capabilities::minimal().shared(true).fencing(true).raise(true).delay(true).durable(true);

/// Opens what a `quorum://?members=url|url|url` names, by the `drivers` of the members, and with the `gates` of those
/// that have one, by the names of the drivers. A majority must be reachable; members that are not are opened when they come
/// back.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a URL that is malformed or names something unknown, before any I/O, and for two
/// members that are the same store;
/// [`ErrorKind::Unavailable`] when no majority can be reached; what a member says that can never work.
///
/// # Cancel safety
/// Safe.
pub async fn open(
    mut url: StoreUrl,
    drivers: &[Driver],
    gates: &[(&str, GateOf)],
    context: Context,
) -> Result<Quorum> {
    let bad = |text: &str| Error::new(ErrorKind::InvalidConfig, text);
    if !url.hosts.is_empty() || url.username.is_some() || !matches!(url.path.as_str(), "" | "/") {
        return Err(bad("a quorum has no host of its own: quorum://?members=url|url|url"));
    }
    let config = QuorumConfig::default().merge_url(&mut url)?;
    let members = config.members.ok_or_else(|| bad("a quorum needs the option `members`"))?;
    let members = (1..).zip(members.split('|')).map(|(nth, text)| member::read(nth, text, drivers));
    let members = members.collect::<Result<Vec<_>>>()?;
    // As they are called once opened.
    let infos: Vec<_> = members.iter().map(|(_, url)| Info::new(&*url.scheme, url.address())).collect();
    check(&infos, config.member_timeout, config.quarantine)?;
    let gate = |(driver, url): &(Driver, StoreUrl)| {
        let of = gates.iter().find(|(name, _)| *name == driver.name);
        of.map_or(Ok(None), |(_, gate)| gate(url))
    };
    let gates = members.iter().map(gate).collect::<Result<Vec<_>>>()?;
    let members = member::open_all(members, &context).await?;
    let members =
        members.into_iter().map(|member| Arc::new(Layered(member)) as Arc<dyn Backend>).zip(gates).collect();
    let quorum = Quorum::of(members, config.member_timeout, config.quarantine, true)?;
    quorum.store().shared.compare_all().await?;
    Ok(quorum)
}
