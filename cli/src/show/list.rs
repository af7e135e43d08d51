//! `list`: the names in use.

use clap::Parser;
use onelock::Page;

use super::lines::{PAGE, page};
use crate::args::Name;
use crate::exit::{Exit, Outcome};
use crate::output::{clean, json, line};
use crate::store;

#[derive(Debug, Parser)]
pub(crate) struct ListArgs {
    /// Only names that start with this.
    #[arg(default_value = "", value_parser = Name)]
    prefix: String,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn list(url: Option<String>, args: ListArgs) -> Outcome {
    onelock::name::check_prefix(&args.prefix)?;
    store::with(url, async |locks| {
        if !args.json {
            line(format_args!("{:>7}  {:>7}  NAME", "HOLDERS", "WAITERS"))?;
        }
        // A page at a time, so that a long list begins at once and ends when nobody reads any more.
        let mut next = Some(Page::first(PAGE)?);
        while let Some(page) = page(locks, &args.prefix, &mut next).await? {
            for listed in page {
                let name = clean(listed.name.as_str());
                if args.json {
                    json(&listed)?;
                } else {
                    line(format_args!("{:>7}  {:>7}  {name}", listed.holders, listed.waiters))?;
                }
            }
        }
        Ok(())
    })
    .await?;
    Ok(Exit::OK)
}
