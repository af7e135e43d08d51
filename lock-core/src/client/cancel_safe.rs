//! Calls to the store that are never cut half way: polled in place, and carried on in the background when their caller
//! drops them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::shared::Client;
use crate::backend::{Renewal, Renewed};
use crate::error::{Error, ErrorKind, Result};

pub(super) type Call<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A call to the store, to be awaited where it is made. Dropped before its end it goes on in the background, and `after` deals with its answer.
///
/// A caller that stops polling it and does not drop it keeps what the call has of the store, such as a pooled connection.
/// Renewals do not wait for that: stores keep a connection in reserve for them.
pub(super) struct CancelSafe<T: Send + 'static, A: FnOnce(&Arc<Client>, T) + Send + 'static> {
    client: Arc<Client>,
    /// The call, and what is done with its answer when nobody waits for it.
    rest: Option<(Call<T>, A)>,
}

impl<T: Send + 'static, A: FnOnce(&Arc<Client>, T) + Send + 'static> CancelSafe<T, A> {
    pub(super) fn new(client: &Arc<Client>, call: Call<T>, after: A) -> Self {
        Self { client: Arc::clone(client), rest: Some((call, after)) }
    }
}

impl<T: Send + 'static, A: FnOnce(&Arc<Client>, T) + Send + Unpin + 'static> Future for CancelSafe<T, A> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Taken out: one that panics is not polled again.
        let Some((mut call, after)) = self.rest.take() else { return Poll::Pending };
        let answer = call.as_mut().poll(cx);
        if answer.is_pending() {
            self.rest = Some((call, after));
        }
        answer
    }
}

impl<T: Send + 'static, A: FnOnce(&Arc<Client>, T) + Send + 'static> Drop for CancelSafe<T, A> {
    fn drop(&mut self) {
        if let Some((call, after)) = self.rest.take() {
            let client = Arc::clone(&self.client);
            self.client.in_background(async move { after(&client, call.await) });
        }
    }
}

/// Renews one entry; once sent it is not cut half way.
///
/// In a task of its own: a caller that does not go on must not keep what renewals are sent by, or what its client holds is
/// lost. It is not asked often enough for the price of one to count.
pub(crate) async fn renew_one(client: &Arc<Client>, renewal: Renewal) -> Result<Renewed> {
    client.ask(|backend| async move { backend.renew(&[renewal]).await.pop().unwrap_or_else(fewer) }).await
}

/// The answer to a renewal that the store left out.
pub(super) fn fewer() -> Result<Renewed> {
    Err(Error::new(ErrorKind::Protocol, "the store answered fewer renewals than it was asked"))
}
