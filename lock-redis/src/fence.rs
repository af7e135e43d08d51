//! Fencing in Redis: a command that runs only if no later holder has written, in one request.
//!
//! The watermark of a name is a key beside the data: it has the largest token in decimal, no expiry, and must not be evicted
//! (`maxmemory-policy` `noeviction` or one of the `volatile-*`). As every write of Redis it can be lost when a replica takes over.
//!
//! **Cluster.** The watermark and all keys of the command are in one slot: give them one hash tag, as in `{order/42}:fence` and
//! `{order/42}:state`. Others are refused (`CROSSSLOT`) and nothing is written. While the slot moves a request may be answered
//! `TRYAGAIN`, `MOVED` or `ASK`: a cluster connection of the driver follows, with a plain one that is an error to try again.

use onelock_core::{Error, ErrorKind, FencingToken, Guard, LockName, Result, fence};
use redis::aio::ConnectionLike;
use redis::{Arg, Cmd, Value, from_redis_value};

use crate::error::from_redis;

/// The script, for `EVAL` by any driver. `KEYS[1]` is the watermark, the further keys are those of the command. `ARGV[1]` is the
/// token in decimal, `ARGV[2]` `1` for an exclusive holder, which raises the watermark, or `0` for one that shares; the command
/// follows. The answer is `[1, answer of the command]`, or `[0, watermark]` when the token is stale or the watermark is none.
pub const SCRIPT: &str = include_str!("scripts/fence.lua");

/// Runs `command` unless the guard is lost or its token is stale, and gives its answer. The first of `keys` is the watermark of this
/// name, the others are the keys of the command.
///
/// A script answers numbers beyond 2⁵³ without their last digits, does not wait in a blocking command, and takes a command of at most
/// some thousand parts.
///
/// ```no_run
/// # async fn pay(mut data: redis::aio::MultiplexedConnection, guard: onelock_core::Guard) -> onelock_core::Result<()> {
/// let command = redis::cmd("SET").arg("{order/42}:state").arg("paid").to_owned();
/// let keys = ["{order/42}:fence", "{order/42}:state"];
/// onelock_redis::fence::run(&mut data, &guard, &keys, &command).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ErrorKind::Stale`]: [`Error::stale`] has both numbers. What [`Guard::token`] says; [`ErrorKind::Unsupported`] for a permit;
/// [`ErrorKind::Misuse`] without a key or for a command with a cursor. The server's error, also that of the command: then the
/// watermark has been raised.
///
/// # Cancel safety
/// The command may have run.
pub async fn run(
    connection: &mut impl ConnectionLike,
    guard: &Guard,
    keys: &[&str],
    command: &Cmd,
) -> Result<Value> {
    let raise = fence::raises(guard.mode())?;
    run_as(connection, (guard.name(), guard.token()?, raise), keys, command).await
}

/// The same for a token that came from elsewhere, such as a header: its name, the token, and whether its holder is an exclusive
/// one.
///
/// # Errors
/// As [`run`].
///
/// # Cancel safety
/// As [`run`].
pub async fn run_as(
    connection: &mut impl ConnectionLike,
    (name, token, raise): (&LockName, FencingToken, bool),
    keys: &[&str],
    command: &Cmd,
) -> Result<Value> {
    let misuse = |text| Err(Error::new(ErrorKind::Misuse, text));
    if keys.is_empty() {
        return misuse("a fenced command needs the key of a watermark");
    }
    let mut eval = redis::cmd("EVAL");
    eval.arg(SCRIPT).arg(keys.len()).arg(keys).arg(token.get()).arg(u8::from(raise));
    for part in command.args_iter() {
        let Arg::Simple(part) = part else { return misuse("a fenced command has no cursor") };
        eval.arg(part);
    }
    let failed = |error: redis::RedisError| from_redis(&error).during("fence").caused_by(error);
    let (ran, answer): (bool, Value) = eval.query_async(connection).await.map_err(failed)?;
    if ran {
        return Ok(answer);
    }
    fence::compare(name, token, from_redis_value(answer).ok())?;
    Err(Error::new(ErrorKind::Protocol, "the watermark of a fence is no fencing token").during("fence"))
}
