//! `top`: a live table of names, holders and waiters.

#[cfg(unix)]
mod columns;
#[cfg(unix)]
mod live;
mod rows;
#[cfg(unix)]
mod screen;
#[cfg(unix)]
mod view;

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Parser;
use onelock::{Error, Locks};

use super::lines::{lines, names};
use crate::args::Name;
use crate::exit::{EXIT_CODES, Exit, Failure, Outcome};
use crate::output::{human, json, table};
use crate::store;
use rows::{Row, Sort, arranged};

#[derive(Debug, Parser)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct TopArgs {
    /// Only names that start with this.
    #[arg(default_value = "", value_parser = Name)]
    prefix: String,
    /// How often to look.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = crate::args::period)]
    interval: Duration,
    /// What comes first.
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// Only names or holders with this in them.
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// How many names to look at.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    names: usize,
    /// Print one table, for scripts, and end.
    #[arg(long)]
    once: bool,
    /// With --once: print one JSON object a line.
    #[arg(long, requires = "once")]
    json: bool,
}

pub(crate) async fn top(url: Option<String>, args: TopArgs) -> Outcome {
    onelock::name::check_prefix(&args.prefix)?;
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if !args.once && !terminal {
        return Err(Failure::Usage("this is no terminal; --once prints one table".into()));
    }
    #[cfg(not(unix))]
    if !args.once {
        return Err(Failure::Usage("the live table needs a Unix terminal; --once prints one table".into()));
    }
    store::with(url, async |locks| {
        #[cfg(unix)]
        if !args.once {
            return live::live(locks, &args).await;
        }
        once(locks, &args).await
    })
    .await
}

async fn once(locks: &Locks, args: &TopArgs) -> Outcome {
    let (_, rows) = look(locks.clone(), args.prefix.clone(), args.names).await?;
    let rows = arranged(rows, args.sort, &args.filter);
    if args.json {
        rows.iter().try_for_each(json)?;
        return Ok(Exit::OK);
    }
    let time = |time: Option<Duration>| time.map_or_else(|| "-".into(), human);
    let cells = |row: &Row| {
        let token = row.token.map_or_else(|| "-".into(), |token| token.to_string());
        vec![row.waiters.to_string(), time(row.oldest), time(row.age), token, row.name.clone(), row.who()]
    };
    table(&["WAITERS", "OLDEST", "AGE", "TOKEN", "NAME", "HOLDER"], rows.iter().map(cells))?;
    Ok(Exit::OK)
}

/// How many names there are, and the rows of `most` of them.
async fn look(locks: Locks, prefix: String, most: usize) -> Result<(usize, Vec<Row>), Error> {
    let mut listed = names(&locks, &prefix).await?;
    let count = listed.len();
    listed.sort_by_key(|listed| std::cmp::Reverse(listed.waiters));
    let (seen, illegible) = lines(&locks, listed.into_iter().take(most)).await?;
    let seen = seen.into_iter().map(Row::from);
    Ok((count, seen.chain(illegible.into_iter().map(Row::from)).collect()))
}
