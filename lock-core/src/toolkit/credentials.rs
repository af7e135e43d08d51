//! Users and passwords that change while a client runs.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Given;
use crate::error::{Error, ErrorKind, Result};
use crate::url::Secret;

type Cause = Box<dyn std::error::Error + Send + Sync>;
type Asked = Pin<Box<dyn Future<Output = Result<(String, Secret), Cause>> + Send>>;

/// A callback that gives the user and the password for each new connection: for passwords that are rotated, and for
/// tokens that are valid for minutes (IAM, Vault).
///
/// An empty user is the store's default one, and an empty password none. Two are equal when one is a clone of the other. It is no part of a configuration that serde reads or writes.
///
/// ```
/// use onelock_core::{Credentials, Secret};
///
/// # async fn token() -> Result<String, std::io::Error> { Ok("secret".into()) }
/// let credentials = Credentials::new(|| async { Ok::<_, std::io::Error>(("app".into(), Secret::new(token().await?))) });
/// assert_eq!(format!("{credentials:?}"), "Credentials(***)");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials(Given<Box<dyn Fn() -> Asked + Send + Sync>>);

impl Credentials {
    /// The credentials that `source` gives. It is called for each connection, before there is one.
    #[must_use]
    pub fn new<F, E>(source: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(String, Secret), E>> + Send + 'static,
        E: Into<Cause>,
    {
        let source = Arc::new(source);
        Self(Given::new(Box::new(move || {
            let source = Arc::clone(&source);
            Box::pin(async move { source().await.map_err(Into::into) })
        })))
    }

    /// The user and the password as they are now.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the callback fails, panics, or takes longer than `limit`.
    ///
    /// # Cancel safety
    /// Safe: the callback is dropped.
    pub async fn get(&self, limit: Duration) -> Result<(String, Secret)> {
        // A task of its own, so that its panic is an error here.
        let mut task = JoinSet::new();
        task.spawn(self.0.get()());
        let failed =
            |why: &str| Error::new(ErrorKind::Unavailable, format!("the callback for credentials {why}"));
        match timeout(limit, task.join_next()).await {
            Ok(Some(Ok(Ok(credentials)))) => Ok(credentials),
            Ok(Some(Ok(Err(cause)))) => Err(failed(&format!("failed: {cause}")).caused_by(cause)),
            Ok(_) => Err(failed("panicked")),
            Err(_) => Err(failed(&format!("did not answer within {limit:?}"))),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_callback_that_fails_is_an_error_that_says_so() {
        type Answer = Result<(String, Secret), std::io::Error>;
        let good = Credentials::new(|| async { Answer::Ok(("me".into(), Secret::new("hunter2"))) });
        assert_eq!(good.get(Duration::from_secs(1)).await.unwrap().1.reveal(), "hunter2");
        let broken = async || -> Answer { panic!("no vault") };
        let bad: [(Credentials, &str); 3] = [
            (Credentials::new(|| async { Answer::Err(std::io::Error::other("sealed")) }), "failed: sealed"),
            (Credentials::new(std::future::pending::<Answer>), "within 1s"),
            (Credentials::new(broken), "panicked"),
        ];
        for (credentials, said) in bad {
            let error = credentials.get(Duration::from_secs(1)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
