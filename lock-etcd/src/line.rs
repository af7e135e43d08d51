//! The line of a name as the store has it: how it is read, and which entries keep which waiting.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use etcd_client::proto::{PbKeyValue, PbRangeResponse, PbResponseHeader, PbTxnOpResponse, PbTxnResponse};
use etcd_client::{GetOptions, SortOrder, SortTarget, Txn, TxnOp};
use onelock_core::mode::holders;
use onelock_core::{Error, ErrorKind, Mode, Result};

use crate::client::Cluster;
use crate::error::{Failure, protocol};
use crate::keys::{Blocker, Entry, Span};

/// The revision of an answer.
pub(crate) fn revision(header: Option<&PbResponseHeader>) -> Result<i64> {
    match header.map_or(0, |header| header.revision) {
        revision if revision > 0 => Ok(revision),
        _ => Err(protocol("etcd answered without a revision")),
    }
}

/// The answers to the readings of a transaction.
pub(crate) fn ranges(answer: PbTxnResponse) -> impl Iterator<Item = PbRangeResponse> {
    answer.responses.into_iter().filter_map(|part| match part.response {
        Some(PbTxnOpResponse::ResponseRange(range)) => Some(range),
        _ => None,
    })
}

/// Reads whether a key is there, in which revision it was made and on which lease it is. All that was done before it was asked is
/// seen, unless `options` are serializable: then the member that is asked answers, which may be behind.
pub(crate) fn key_op(key: &[u8], options: GetOptions) -> TxnOp {
    TxnOp::get(key, Some(options.with_keys_only()))
}

/// What [`key_op`] has read.
pub(crate) fn found(key: &[u8], answer: PbRangeResponse) -> Option<PbKeyValue> {
    answer.kvs.into_iter().next().filter(|kv| kv.key == key)
}

/// How many entries ahead suffice to know that an entry of this mode waits.
fn enough(mode: Mode) -> i64 {
    match mode {
        Mode::Exclusive | Mode::Shared => 1,
        Mode::Permit { limit, .. } => i64::from(limit.get()),
    }
}

/// Reads the nearest entries that can keep one of this mode waiting: those before the number `before`, or all. The bytes do not
/// grow with the line.
pub(crate) fn ahead_ops(span: &Span, mode: Mode, before: Option<i64>, options: &GetOptions) -> Vec<TxnOp> {
    let part = |part: Span| {
        let options = options
            .clone()
            .with_sort(SortTarget::Create, SortOrder::Descend)
            // One more where the entry itself may be among them.
            .with_limit(enough(mode) + i64::from(before.is_none()))
            // 0 is no limit.
            .with_max_create_revision(before.map_or(0, |before| before.saturating_sub(1).max(1)))
            .with_keys_only();
        part.op(options)
    };
    let parts = match mode {
        Mode::Permit { .. } => vec![span.clone()],
        Mode::Exclusive | Mode::Shared => span.against(mode),
    };
    parts.into_iter().map(part).collect()
}

/// The entries in the answers to [`ahead_ops`], without the entry itself, in line order.
pub(crate) fn ahead(span: &Span, key: &[u8], answers: impl Iterator<Item = PbRangeResponse>) -> Vec<Entry> {
    span.entries(answers.flat_map(|answer| answer.kvs).filter(|kv| kv.key != key).collect())
}

/// Those of the entries ahead that keep one of this mode waiting for as long as all of them are there; none if it holds.
pub(crate) fn blockers(mode: Mode, mut ahead: Vec<Entry>) -> Vec<Entry> {
    let alone = |entry: &Entry| holders([entry.mode, mode]) < 2;
    if let Some(nearest) = ahead.iter().rposition(alone) {
        return vec![ahead.swap_remove(nearest)];
    }
    let modes = ahead.iter().map(|entry| entry.mode).chain([mode]);
    if holders(modes) > ahead.len() { Vec::new() } else { ahead }
}

/// Makes the readings of a waiter in its turn: on the member that is asked, or where it is behind `seen` on the cluster. The revision,
/// and the answers.
pub(crate) async fn read_since(
    cluster: &Arc<Cluster>,
    reads: impl Fn(&GetOptions) -> Vec<TxnOp>,
    seen: i64,
) -> Result<(i64, Vec<PbRangeResponse>)> {
    for (options, least) in [(GetOptions::new().with_serializable(), seen), (GetOptions::new(), 0)] {
        let txn = Txn::new().and_then(reads(&options));
        let answer = cluster.send_in_turn(&cluster.readings, txn).await.0?;
        let revision = revision(answer.header.as_ref())?;
        if revision >= least {
            return Ok((revision, ranges(answer).collect()));
        }
    }
    Err(protocol("etcd has gone back"))
}

pub(crate) fn keys_of(blockers: Vec<Entry>) -> Arc<[Blocker]> {
    blockers.into_iter().map(|entry| (entry.key, entry.number)).collect()
}

/// Makes one reading.
pub(crate) async fn read(cluster: &Arc<Cluster>, op: TxnOp) -> Result<PbRangeResponse> {
    next(&mut ranges(cluster.send(&Txn::new().and_then([op]), &mut false).await?))
}

/// The next answer of a transaction.
pub(crate) fn next(ranges: &mut impl Iterator<Item = PbRangeResponse>) -> Result<PbRangeResponse> {
    ranges.next().ok_or_else(|| protocol("etcd left out a reading"))
}

/// Makes readings, in transactions of as many as the server takes; an answer for each. Fewer go into one once the server has
/// refused so many, and where the user may not make one of them: that says nothing of the others.
pub(crate) async fn read_many(cluster: &Arc<Cluster>, reads: &[TxnOp]) -> Vec<Result<PbRangeResponse>> {
    let (mut answers, mut most) = (Vec::with_capacity(reads.len()), usize::MAX);
    while answers.len() < reads.len() {
        let left = &reads[answers.len()..];
        let part = &left[..left.len().min(most).min(cluster.batch.load(Ordering::Relaxed))];
        match cluster.send(&Txn::new().and_then(part), &mut false).await {
            Ok(answer) => {
                let mut ranges = ranges(answer);
                answers.extend(part.iter().map(|_| next(&mut ranges)));
                most = most.saturating_mul(2);
            }
            Err(Failure::Other(error)) if part.len() > 1 && error.kind() == ErrorKind::Denied => {
                most = part.len().div_ceil(2);
            }
            Err(Failure::TooLarge(_)) if part.len() > 1 => {
                cluster.batch.fetch_min(part.len().div_ceil(2), Ordering::Relaxed);
            }
            Err(failure) => {
                let error = Error::from(failure);
                answers.extend(part.iter().map(|_| Err(error.clone())));
            }
        }
    }
    answers
}
