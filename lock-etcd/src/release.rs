//! Leaving a line: by its holder, by eviction, and for those entries of this client that nobody renewed in time.

use std::sync::Arc;

use etcd_client::proto::{PbKeyValue, PbRangeResponse};
use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp};
use futures_util::future::join_all;
use onelock_core::{Error, ErrorKind, FencingToken, LockName, Release, Result, Ticket};

use crate::client::{Cluster, kv};
use crate::entries::{AGAIN, Entries, LOOK, Own, SWEEP};
use crate::keys::Keys;
use crate::lease::Leases;
use crate::line;

/// Deletes an entry. Its key is that of one holder, who is one acquisition, so there is nothing else to compare.
pub(crate) async fn release(
    keys: &Keys,
    leases: &Leases,
    entries: &Entries,
    ticket: &Ticket,
) -> Result<Release> {
    let key = keys.line(&ticket.name).entry(ticket.mode, ticket.holder);
    let mut unclear = false;
    // Where the store does not answer it is taken out by the sweep as well.
    entries.release(ticket.holder, leases.now() + AGAIN);
    let call = |client: Arc<Client>| {
        let key = key.clone();
        async move { kv(&client).delete(key, None).await }
    };
    let answer = leases.cluster.request(&mut unclear, call).await?;
    entries.absent(ticket.holder, leases.now());
    left(answer.deleted() > 0, unclear)
}

/// Whether an entry was taken out. Where an earlier try was not answered it may have been taken by that one, or by somebody else.
fn left(taken: bool, unclear: bool) -> Result<Release> {
    match taken {
        true => Ok(Release::Released),
        false if unclear => {
            let text =
                "an earlier try was not answered; the entry is gone now, but it is not known who took it";
            Err(Error::new(ErrorKind::Unavailable, text))
        }
        false => Ok(Release::NotHeld),
    }
}

/// Deletes the entry with this number.
pub(crate) async fn evict(
    keys: &Keys,
    cluster: &Arc<Cluster>,
    name: &LockName,
    token: FencingToken,
) -> Result<Release> {
    let (span, number) = (keys.line(name), token.get());
    let options = GetOptions::new().with_min_create_revision(number).with_max_create_revision(number);
    let found = line::read(cluster, span.op(options.with_keys_only())).await?;
    let found = span.entries(found.kvs).pop();
    let Some(entry) = found.filter(|entry| entry.number == number) else { return Ok(Release::NotHeld) };
    let same = Compare::create_revision(&entry.key[..], CompareOp::Equal, number);
    let (taken, unclear) = delete_if(cluster, &entry.key, same).await?;
    left(taken, unclear)
}

/// Deletes a key for which this holds; whether it did, and whether an earlier try may have.
async fn delete_if(cluster: &Arc<Cluster>, key: &[u8], this: Compare) -> Result<(bool, bool)> {
    let txn = Txn::new().when([this]).and_then([TxnOp::delete(key, None)]);
    let mut unclear = false;
    let answer = cluster.send(&txn, &mut unclear).await?;
    Ok((answer.succeeded, unclear))
}

/// Takes out the entries of this client whose time has passed while others keep their lease alive, and what joins with an
/// unclear outcome have made since. Now and then it looks for what a restore of the cluster has brought back on their leases.
pub(crate) async fn sweep(leases: Arc<Leases>, entries: Arc<Entries>) {
    let (cluster, mut looked) = (&leases.cluster, leases.now());
    while cluster.current().is_ok() {
        if entries.is_empty() {
            entries.begun.notified().await;
        }
        tokio::time::sleep(SWEEP).await;
        if leases.now().saturating_since(looked) >= LOOK {
            for (lease, keys) in leases.keys().await {
                entries.found(&lease, keys, leases.now());
            }
            looked = leases.now();
        }
        let lapsed = entries.lapsed(leases.now());
        let reads = lapsed.iter().map(|(_, own)| line::key_op(&own.key, GetOptions::new()));
        let reads: Vec<_> = reads.collect();
        let found = line::read_many(cluster, &reads).await;
        let each = lapsed.iter().zip(found).map(|((holder, own), found)| {
            let (leases, entries) = (&leases, &entries);
            async move {
                // One that is not released any more has been resumed here meanwhile.
                let released = || entries.known(*holder).is_some_and(|own| own.released);
                // What may not be looked at is gone with its leases. After an outage they begin anew: that is looked at.
                let over = || own.leases.iter().all(|lease| lease.is_over(leases.now()));
                let out = is_out(cluster, own, found).await;
                if out.unwrap_or_else(|error| !error.is_retryable() && over()) && released() {
                    entries.absent(*holder, leases.now());
                }
                entries.taken_out(*holder);
            }
        });
        join_all(each).await;
    }
}

/// Takes out an entry that was read; whether it is out. One that has moved since is not.
async fn is_out(cluster: &Arc<Cluster>, own: &Own, found: Result<PbRangeResponse>) -> Result<bool> {
    let Some(kv) = line::found(&own.key, found?).filter(|kv| is_ours(kv, own)) else { return Ok(true) };
    let same = Compare::mod_revision(&kv.key[..], CompareOp::Equal, kv.mod_revision);
    let (taken, unclear) = delete_if(cluster, &kv.key, same).await?;
    Ok(taken || unclear)
}

/// Whether an entry is still that of this client: another one may have resumed it, on a lease of its own.
fn is_ours(kv: &PbKeyValue, own: &Own) -> bool {
    // 0 is that of one that was found on a lease of this client.
    let same = own.unclear || [0, kv.create_revision].contains(&own.number);
    same && own.leases.iter().any(|lease| lease.id == kv.lease)
}
