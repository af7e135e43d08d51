//! `list`: the names in use.

use clap::Parser;
use onelock::{Locks, Page};
use serde::Serialize;

use crate::args::Name;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{clean, json, line};
use crate::store;

/// How many names one request asks for.
pub(super) const PAGE: usize = 500;

#[derive(Debug, Parser)]
pub(crate) struct ListArgs {
    /// Only names that start with this.
    #[arg(default_value = "", value_parser = Name)]
    prefix: String,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ListJson<'a> {
    name: &'a str,
    holders: usize,
    waiters: usize,
}

pub(crate) async fn list(url: Option<String>, args: ListArgs) -> Outcome {
    onelock::name::check_prefix(&args.prefix)?;
    let locks = store::connect(url).await?;
    let listed = pages(&locks, &args).await;
    store::close(&locks).await;
    listed.map(|()| Exit::OK)
}

/// A page at a time, so that a long list begins at once and ends when nobody reads any more.
async fn pages(locks: &Locks, args: &ListArgs) -> Result<(), Failure> {
    let mut page = Page::first(PAGE)?;
    if !args.json {
        line(format_args!("{:>7}  {:>7}  NAME", "HOLDERS", "WAITERS"))?;
    }
    loop {
        let listing = locks.list(&args.prefix, &page).await?;
        for listed in &listing.names {
            let (name, holders, waiters) = (listed.name.as_str(), listed.holders, listed.waiters);
            if args.json {
                json(&ListJson { name, holders, waiters })?;
            } else {
                line(format_args!("{holders:>7}  {waiters:>7}  {}", clean(name)))?;
            }
        }
        match listing.next {
            Some(cursor) => page = page.after(cursor),
            None => return Ok(()),
        }
    }
}
