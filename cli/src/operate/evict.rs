//! `evict`: takes an entry out of a line.

use clap::Parser;
use onelock::{FencingToken, LockName, Release};
use serde::Serialize;

use crate::args::Name;
use crate::exit::{Exit, Outcome};
use crate::output::{json, line};
use crate::store;

#[derive(Debug, Parser)]
pub(crate) struct EvictArgs {
    /// The name of the lock.
    #[arg(value_parser = Name)]
    name: String,
    /// The token of the holder or waiter, as `status` shows it. Nothing happens when it has changed meanwhile.
    #[arg(long, value_parser = token)]
    token: FencingToken,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn token(text: &str) -> Result<FencingToken, String> {
    text.parse().map_err(|_| "a token is a positive whole number".into())
}

#[derive(Serialize)]
struct EvictJson<'a> {
    name: &'a str,
    token: FencingToken,
    evicted: bool,
}

pub(crate) async fn evict(url: Option<String>, args: EvictArgs) -> Outcome {
    let name = LockName::new(&args.name)?;
    let token = args.token;
    let answer = store::with(url, async |locks| Ok(locks.evict(&name, token).await?)).await?;
    let evicted = answer == Release::Released;
    if args.json {
        json(&EvictJson { name: name.as_str(), token, evicted })?;
    } else if evicted {
        line(format_args!("evicted token {token} from {name}; its holder learns of it at its next renewal"))?;
    } else {
        line(format_args!("nobody holds {name} or waits for it with token {token}; nothing was done"))?;
    }
    Ok(if evicted { Exit::OK } else { Exit::NO })
}
