//! What a connection needs on both servers: the one of several that takes writes, credentials, errors of ours on their way
//! through the driver's.

use std::time::Duration;

use futures_util::future::join_all;
use onelock_core::{Credentials, Error, ErrorKind, Host, Secret};
use tokio::time::timeout;

use crate::unharmed::unharmed;

/// The one of `hosts` that takes writes, as `probe` finds out. All are asked at once, each for `limit`: that two take
/// writes shows where they are no primary and standby, or where a standby was promoted and the old primary goes on. Then
/// neither is used, for others may use the other one.
pub(crate) async fn primary<'a, F>(
    hosts: &'a [Host],
    limit: Duration,
    probe: impl Fn(&'a Host) -> F,
) -> Result<&'a Host, sqlx::Error>
where
    F: Future<Output = Result<bool, sqlx::Error>>,
{
    let late = || sqlx::Error::Io(std::io::Error::from(std::io::ErrorKind::TimedOut));
    let asked = hosts.iter().map(|host| {
        let answer = timeout(limit, unharmed(probe(host)));
        async move { (host, answer.await.unwrap_or_else(|_| Err(late()))) }
    });
    let (mut primaries, mut said, mut refused) = (Vec::new(), Vec::new(), None);
    for (host, answer) in join_all(asked).await {
        match answer {
            Ok(true) => primaries.push(host),
            Ok(false) => said.push(format!("{host} is a standby, or read-only")),
            Err(error) => {
                said.push(format!("{host}: {error}"));
                refused = refused.or(Some(error));
            }
        }
    }
    match (&primaries[..], refused) {
        ([host], _) => Ok(host),
        // A wrong password is answered as such.
        ([], Some(error)) if error.as_database_error().is_some() => Err(error),
        ([], _) => Err(ours(Error::new(ErrorKind::Unavailable, format!("no primary: {}", said.join("; "))))),
        ([one, other, ..], _) => {
            let text =
                format!("{one} and {other} both take writes: locks on one do not exclude those on the other");
            Err(ours(Error::new(ErrorKind::Unavailable, text)))
        }
    }
}

/// Connects, within this time.
pub(crate) async fn in_time<T>(
    limit: Duration,
    connecting: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    // Nothing was asked yet.
    let late = |_| {
        let text = format!("the server could not be reached within {limit:?}");
        Err(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text)))
    };
    timeout(limit, unharmed(connecting)).await.unwrap_or_else(late)
}

/// The user and the password that the callback gives, if it gives one. It has a part of the time for connecting, so that the
/// error of one that hangs is its own.
pub(crate) async fn given(
    callback: Option<&Credentials>,
    connect_timeout: Duration,
) -> Result<Option<(String, Option<Secret>)>, sqlx::Error> {
    let Some(callback) = callback else { return Ok(None) };
    let (user, password) = callback.get(connect_timeout / 2).await.map_err(ours)?;
    Ok(Some((user, Some(password).filter(|password| !password.reveal().is_empty()))))
}

/// An error of ours where the driver's is expected.
fn ours(error: Error) -> sqlx::Error {
    sqlx::Error::AnyDriverError(Box::new(error))
}

/// The error that [`ours`] wrapped.
pub(crate) fn as_ours(error: &sqlx::Error) -> Option<Error> {
    match error {
        sqlx::Error::AnyDriverError(cause) => cause.downcast_ref().cloned(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_one_that_takes_writes_is_used() {
        let hosts = ["a", "b", "c"].map(|host| Host::new(host, 1));
        let found = async |primaries: &'static [&'static str], hangs: &'static [&'static str]| {
            let probe = |host: &Host| {
                let (primary, hangs) = (primaries.contains(&&*host.host), hangs.contains(&&*host.host));
                async move { if hangs { std::future::pending().await } else { Ok(primary) } }
            };
            primary(&hosts, Duration::from_secs(1), probe).await.map(|host| host.host.clone())
        };
        assert_eq!(found(&["b"], &[]).await.unwrap(), "b");
        assert_eq!(found(&["c"], &["a"]).await.unwrap(), "c");
        for (primaries, hangs, text) in [
            (&["a", "b"][..], &[][..], "a:1 and b:1 both take writes"),
            (&[], &[], "no primary: a:1 is a standby"),
            (&["a"], &["a"], "no primary: a:1: "),
        ] {
            let error = as_ours(&found(primaries, hangs).await.unwrap_err()).unwrap();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
