//! Asks several servers the same, and waits for as many answers as are worth waiting for.

use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use onelock_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, timeout_at};

/// How long a majority may be waited for once one has answered.
const GRACE: Duration = Duration::from_millis(200);

/// The answers of a majority of `asked`, or of those that answered soon after the first. What one of them knows alone
/// may be old; so the caller takes the newest of several.
///
/// # Errors
/// The last failure, when nobody answers.
pub(crate) async fn majority<T>(asked: Vec<impl Future<Output = Result<T>>>) -> Result<Vec<T>> {
    let enough = asked.len() / 2 + 1;
    some(asked, enough, GRACE).await
}

/// The same of `enough` of them, or of those that answered within `grace` of the first.
pub(super) async fn some<T>(
    asked: Vec<impl Future<Output = Result<T>>>,
    enough: usize,
    grace: Duration,
) -> Result<Vec<T>> {
    let mut asked: FuturesUnordered<_> = asked.into_iter().collect();
    let mut answers = Vec::new();
    let mut failure = Error::new(ErrorKind::Unavailable, "there is no server to ask");
    // How long the first may take is for the caller to say.
    let mut until = Instant::now() + Duration::from_secs(86_400);
    while answers.len() < enough {
        match timeout_at(until, asked.next()).await {
            Ok(Some(Ok(answer))) => {
                answers.push(answer);
                until = until.min(Instant::now() + grace);
            }
            Ok(Some(Err(error))) => failure = error,
            Ok(None) | Err(_) => break,
        }
    }
    if answers.is_empty() { Err(failure) } else { Ok(answers) }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answer(after: Option<u64>, what: Result<u32>) -> Result<u32> {
        match after {
            Some(after) => tokio::time::sleep(Duration::from_millis(after)).await,
            None => std::future::pending().await,
        }
        what
    }

    fn down() -> Result<u32> {
        Err(Error::new(ErrorKind::Unavailable, "down"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_majority_is_enough_and_one_is_better_than_none() {
        let of = async |asked: Vec<(Option<u64>, Result<u32>)>| {
            majority(asked.into_iter().map(|(after, what)| answer(after, what)).collect()).await
        };
        assert_eq!(of(vec![(Some(2), Ok(2)), (None, Ok(3)), (Some(1), Ok(1))]).await.unwrap(), [1, 2]);
        assert_eq!(of(vec![(Some(5), Ok(7)), (None, Ok(8)), (None, Ok(9))]).await.unwrap(), [7]);
        assert_eq!(of(vec![(Some(1), down()), (Some(9), Ok(4))]).await.unwrap(), [4]);
        assert_eq!(
            of(vec![(Some(1), down()), (Some(2), down())]).await.unwrap_err().kind(),
            ErrorKind::Unavailable
        );
        assert!(of(vec![]).await.is_err());
    }
}
