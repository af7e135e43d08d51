//! `leader`: who leads an election.

use std::time::SystemTime;

use clap::Parser;
use onelock::{FencingToken, LockName, Locks};
use serde::Serialize;

use super::moment;
use crate::args::Name;
use crate::exit::{EXIT_CODES, Exit, Failure, Outcome};
use crate::output::{clean, json, line, reader_left};
use crate::store;

#[derive(Debug, Parser)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct LeaderArgs {
    /// The name of the election.
    #[arg(value_parser = Name)]
    name: String,
    /// Go on and tell of each change, until it is ended.
    #[arg(long)]
    watch: bool,
    /// Print one JSON object, or one a line.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct LeaderJson<'a> {
    at: String,
    name: &'a str,
    led: bool,
    note: Option<&'a str>,
    token: Option<FencingToken>,
    /// When it became a candidate for this term.
    since: Option<String>,
}

pub(crate) async fn leader(url: Option<String>, args: LeaderArgs) -> Outcome {
    let name = LockName::new(&args.name)?;
    let led = store::with(url, async |locks| tell(locks, &name, &args).await).await?;
    Ok(if led { Exit::OK } else { Exit::NO })
}

/// Whether anybody leads.
async fn tell(locks: &Locks, name: &LockName, args: &LeaderArgs) -> Result<bool, Failure> {
    let election = locks.election(name)?;
    // The first answer tells of a store that cannot be asked; the stream would wait for it.
    let mut leader = election.leader().await?;
    let mut seen = election.observe();
    loop {
        if args.watch {
            leader = tokio::select! { seen = seen.next() => seen, left = reader_left() => return Err(left) };
        }
        let at = moment(SystemTime::now());
        let since = leader.as_ref().and_then(|leader| leader.since).map(moment);
        let led = leader.is_some();
        if args.json {
            let note = leader.as_ref().map(|leader| leader.note.as_str());
            let token = leader.as_ref().map(|leader| leader.token);
            json(&LeaderJson { at, name: name.as_str(), led, note, token, since })?;
        } else {
            let text = leader.as_ref().map(|leader| {
                let since = since.map(|since| format!(", since {since}")).unwrap_or_default();
                format!("{} leads with token {}{since}", clean(&leader.note), leader.token)
            });
            let text = text.unwrap_or_else(|| format!("nobody leads {name}"));
            let at = if args.watch { format!("{at}  ") } else { String::new() };
            line(format_args!("{at}{text}"))?;
        }
        if !args.watch {
            return Ok(led);
        }
    }
}
