//! Fencing in the cluster that the locks are in: a transaction that is done only while the entry of the lock is there.
//!
//! The number in a token is the revision that created the entry's key (a `token_epoch` stands in the 15 bits above it). So no
//! watermark is needed: a client that lost the lock has no such key any more, also before a later holder has written.

use etcd_client::{
    Compare, CompareOp, GetOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use onelock_core::{Error, ErrorKind, FencingToken, Guard, LockName, Result, TokenEpoch, fence};

use crate::error::protocol;
use crate::keys::{Keys, Span};

/// The entry of a guard, for transactions of the caller's own client.
///
/// ```no_run
/// # async fn pay(mut client: etcd_client::Client, guard: onelock_core::Guard) -> Result<(), Box<dyn std::error::Error>> {
/// use etcd_client::TxnOp;
/// let entry = onelock_etcd::fence::Entry::of(&guard, "onelock/")?;
/// let answer = client.txn(entry.txn([TxnOp::put("orders/42", "paid", None)])).await?;
/// entry.admitted(&answer)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Entry {
    name: LockName,
    token: FencingToken,
    line: Span,
    key: Vec<u8>,
}

impl Entry {
    /// Of a guard whose client has this `prefix` (`onelock/` unless its URL says otherwise) in this cluster. With another prefix,
    /// another cluster, or a guard of another store, there is no such key, and every transaction is refused.
    ///
    /// # Errors
    /// What [`Guard::token`] says; [`ErrorKind::Unsupported`] for a permit.
    pub fn of(guard: &Guard, prefix: &str) -> Result<Self> {
        fence::raises(guard.mode())?;
        let (name, token) = (guard.name().clone(), guard.token()?);
        let line = Keys::new(prefix).line(&name);
        let key = line.entry(guard.mode(), guard.holder());
        Ok(Self { name, token, line, key })
    }

    /// Whether the entry is there, for a transaction of any kind.
    #[must_use]
    pub fn compare(&self) -> Compare {
        Compare::create_revision(&*self.key, CompareOp::Equal, self.number())
    }

    /// The number in the token.
    fn number(&self) -> i64 {
        TokenEpoch::of(self.token.get()).open(self.token).unwrap_or(self.token).get()
    }

    /// Does this if the entry is there; [`Entry::admitted`] reads the answer.
    #[must_use]
    pub fn txn(&self, then: impl Into<Vec<TxnOp>>) -> Txn {
        let later = GetOptions::new()
            .with_min_create_revision(self.number().saturating_add(1))
            .with_sort(SortTarget::Create, SortOrder::Ascend)
            .with_limit(1)
            .with_keys_only();
        Txn::new().when([self.compare()]).and_then(then).or_else([self.line.op(later)])
    }

    /// Whether [`Entry::txn`] was done.
    ///
    /// # Errors
    /// [`ErrorKind::Stale`] when the entry is gone and a later one is there: [`Error::stale`] has the token of the first one.
    /// [`ErrorKind::Lost`] when none is.
    pub fn admitted(&self, answer: &TxnResponse) -> Result<()> {
        if answer.succeeded() {
            return Ok(());
        }
        let parts = answer.op_responses();
        let Some(TxnOpResponse::Get(later)) = parts.first() else {
            return Err(protocol("etcd left out a reading"));
        };
        let Some(first) = later.kvs().first() else {
            let text = format!("the entry of `{}` with token {} is gone", self.name, self.token);
            return Err(Error::new(ErrorKind::Lost, text).during("fence"));
        };
        let newest = FencingToken::new(first.create_revision())?;
        let newest = TokenEpoch::of(self.token.get()).shown(newest);
        Err(fence::Stale::new(self.name.clone(), self.token, newest).into())
    }
}
