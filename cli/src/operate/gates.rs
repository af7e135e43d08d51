//! `gates`: the gates of a quorum's members. The JSON is a promise, as that of `show`.

use clap::Parser;
use onelock::Quorum;
use onelock::quorum::SeenGate;
use onelock::store::Backend as _;
use serde::Serialize;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::{json, line, table};

#[derive(Debug, Parser)]
pub(crate) struct GatesArgs {
    /// Open every gate that is shut. Only when nobody holds or awaits a lock of this quorum, and nobody has for the
    /// longest lease. All members must be there.
    #[arg(long)]
    open: bool,
    /// A number that every token to come must exceed, beside those that the members know: where a majority may have
    /// lost numbers, one above every token ever given.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "open", value_parser = clap::value_parser!(i64).range(0..))]
    floor: i64,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct GateJson<'a> {
    member: &'a str,
    /// `open`, `shut`, `none` or `unknown`.
    gate: &'static str,
    incarnation: Option<&'a str>,
    /// The largest number that any counter of the member has reached, with the largest token epoch in its high bits.
    highest: Option<String>,
    error: Option<String>,
}

pub(crate) async fn gates(url: Option<String>, args: GatesArgs) -> Outcome {
    let url = url.ok_or_else(|| Failure::Usage("which quorum? say --store 'quorum://?members=…'".into()))?;
    let quorum = onelock::connect_quorum(&url).await?;
    let outcome = show(&quorum, &args).await;
    // It holds nothing.
    let _ = quorum.close().await;
    outcome
}

async fn show(quorum: &Quorum, args: &GatesArgs) -> Outcome {
    if args.open {
        let opened = quorum.open_gates(args.floor).await?;
        if !args.json {
            line(format_args!("{opened} opened"))?;
        }
    }
    let seen = quorum.gates().await?;
    let rows: Vec<_> = seen.iter().map(row).collect();
    if args.json {
        rows.iter().try_for_each(json)?;
    } else {
        let cells = |row: &GateJson<'_>| {
            let text = |text: Option<&str>| text.unwrap_or("-").to_owned();
            let told = row.error.as_deref().or(row.incarnation);
            vec![row.member.to_owned(), row.gate.to_owned(), text(row.highest.as_deref()), text(told)]
        };
        table(&["MEMBER", "GATE", "HIGHEST TOKEN", "INCARNATION"], rows.iter().map(cells))?;
    }
    let open = rows.iter().all(|row| matches!(row.gate, "open" | "none"));
    Ok(if open { Exit::OK } else { Exit::NO })
}

fn row(seen: &SeenGate) -> GateJson<'_> {
    let (gate, view, error) = match &seen.gate {
        Ok(Some(view)) => (if view.open { "open" } else { "shut" }, Some(view), None),
        Ok(None) => ("none", None, None),
        Err(error) => ("unknown", None, Some(error.to_string())),
    };
    GateJson {
        member: &seen.member,
        gate,
        incarnation: view.map(|view| view.incarnation.as_str()),
        highest: view.map(|view| view.highest.to_string()),
        error,
    }
}
