//! Reading lines.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use etcd_client::proto::{PbKeyValue, PbRangeResponse, PbTxnOpResponse};
use etcd_client::{Client, GetOptions, KvClient, SortOrder, SortTarget, Txn, TxnOp};
use futures_util::future::join_all;
use onelock_core::{Error, Result};

use crate::error::{Failure, protocol};
use crate::keys::{Seat, Span};
use crate::members::Members;

/// The largest answer that is read: a line of some hundred thousand entries.
const LARGEST_ANSWER: usize = 64 << 20;

pub(crate) fn kv(client: &Client) -> KvClient {
    client.kv_client().max_decoding_message_size(LARGEST_ANSWER)
}

/// A line as it was at one revision.
#[derive(Debug)]
pub(crate) struct Reading {
    /// In line order.
    pub(crate) line: Vec<Seat>,
    /// Only entries with a larger number were read.
    pub(crate) above: i64,
    pub(crate) revision: i64,
}

/// What to read of a line: its entries with a number up to `upto`, in line order, without values.
fn up_to(span: &Span, upto: Option<i64>) -> GetOptions {
    let options = GetOptions::new()
        .with_range(span.end.clone())
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_keys_only();
    match upto {
        Some(upto) => options.with_max_create_revision(upto),
        None => options,
    }
}

/// Reads a whole line inside a transaction.
pub(crate) fn read_op(span: &Span) -> TxnOp {
    TxnOp::get(span.start.clone(), Some(up_to(span, None)))
}

/// Reads the entries with a larger number than `above` inside a transaction.
pub(crate) fn read_new_op(span: &Span, above: i64) -> TxnOp {
    TxnOp::get(span.start.clone(), Some(newer(span, above)))
}

fn newer(span: &Span, above: i64) -> GetOptions {
    up_to(span, None).with_min_create_revision(above.saturating_add(1))
}

/// Reads whether a key is there, in which revision it was made and on which lease it is.
pub(crate) fn look_op(key: &[u8]) -> TxnOp {
    TxnOp::get(key, Some(GetOptions::new().with_keys_only()))
}

/// Reads the latest entries with a number up to `number`, at most `limit`: O(1) bytes in a line of any length.
pub(crate) fn ahead_op(span: &Span, number: i64, limit: i64) -> TxnOp {
    let options = GetOptions::new()
        .with_range(span.end.clone())
        .with_max_create_revision(number)
        .with_sort(SortTarget::Create, SortOrder::Descend)
        .with_limit(limit)
        .with_keys_only();
    TxnOp::get(span.start.clone(), Some(options))
}

/// Reads a line: up to `upto` if given, else whole.
pub(crate) async fn read(members: &Members, span: &Span, upto: Option<i64>) -> Result<Reading, Failure> {
    get(members, span, up_to(span, upto)).await
}

/// Reads the entries with a larger number than `above`.
pub(crate) async fn read_new(members: &Members, span: &Span, above: i64) -> Result<Reading, Failure> {
    let reading = get(members, span, newer(span, above)).await?;
    Ok(Reading { above, ..reading })
}

/// Reads a whole line with its values.
pub(crate) async fn read_values(members: &Members, span: &Span) -> Result<Reading, Failure> {
    let options = GetOptions::new().with_range(span.end.clone());
    get(members, span, options).await
}

async fn get(members: &Members, span: &Span, options: GetOptions) -> Result<Reading, Failure> {
    let call = |client: Arc<Client>| {
        let (start, options) = (span.start.clone(), options.clone());
        async move { kv(&client).get(start, Some(options)).await }
    };
    let answer = members.request(call).await?.0;
    let revision = answer.header.as_ref().map_or(0, |header| header.revision);
    if revision <= 0 {
        return Err(protocol("etcd answered without a revision").into());
    }
    Ok(Reading { line: seats(span, answer)?, above: 0, revision })
}

/// Makes readings, in transactions of as many as the server takes; an answer for each.
pub(crate) async fn read_many(members: &Members, reads: &[TxnOp]) -> Vec<Result<PbRangeResponse>> {
    let size = members.batch.load(Ordering::Relaxed);
    let answers = join_all(reads.chunks(size).map(|batch| read_batch(members, batch))).await;
    answers.into_iter().flatten().collect()
}

/// Halves what the server refuses as too large, and remembers that.
async fn read_batch(members: &Members, reads: &[TxnOp]) -> Vec<Result<PbRangeResponse>> {
    let mut answers = Vec::with_capacity(reads.len());
    let mut left = vec![reads];
    while let Some(part) = left.pop() {
        let call = |client: Arc<Client>| async move { kv(&client).txn(Txn::new().and_then(part)).await };
        match members.request(call).await {
            Ok(answer) => {
                let mut parts = answer.0.responses.into_iter().map(|part| part.response);
                answers.extend(part.iter().map(|_| match parts.next().flatten() {
                    Some(PbTxnOpResponse::ResponseRange(range)) => Ok(range),
                    _ => Err(protocol("etcd left out a reading")),
                }));
            }
            Err(Failure::TooLarge(_)) if part.len() > 1 => {
                let (first, second) = part.split_at(part.len().div_ceil(2));
                members.batch.fetch_min(first.len(), Ordering::Relaxed);
                left.extend([second, first]);
            }
            Err(failure) => {
                let error = Error::from(failure).during("renew");
                answers.extend(part.iter().map(|_| Err(error.clone())));
            }
        }
    }
    answers
}

/// The entries of an answer to the reading of a whole line, in line order.
pub(crate) fn whole(span: &Span, answer: PbRangeResponse) -> Result<Vec<Seat>> {
    let count = usize::try_from(answer.count).ok();
    if count != Some(answer.kvs.len()) {
        return Err(contradiction());
    }
    seats(span, answer)
}

fn contradiction() -> Error {
    protocol("an answer of etcd contradicts itself")
}

/// The entries of an answer, in line order.
///
/// An answer that was altered on the way is better an error than another order: a key that was written once was made then,
/// and any other was made before it was written last.
pub(crate) fn seats(span: &Span, answer: PbRangeResponse) -> Result<Vec<Seat>> {
    let sound = |kv: &PbKeyValue| {
        kv.key.starts_with(&span.start)
            && kv.create_revision <= kv.mod_revision
            && (kv.version == 1) == (kv.create_revision == kv.mod_revision)
    };
    if !answer.kvs.iter().all(sound) {
        return Err(contradiction());
    }
    let seat = |kv: PbKeyValue| Seat {
        number: kv.create_revision,
        mode: span.mode_of(&kv.key),
        key: kv.key,
        lease: kv.lease,
        value: kv.value,
    };
    let mut line: Vec<_> = answer.kvs.into_iter().map(seat).collect();
    line.sort_by(|a, b| a.place().cmp(&b.place()));
    Ok(line)
}
