//! `ping`: whether a store can be reached and written.

use std::time::{Duration, Instant};

use clap::Parser;
use onelock::{Error, ErrorKind};
use serde::Serialize;

use crate::exit::{EXIT_CODES, Exit, Failure, Outcome};
use crate::output::{json, line};
use crate::store;

#[derive(Debug, Parser)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct PingArgs {
    /// How long all of it may take.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// The one whose times are microseconds: most answers take less than a millisecond.
#[derive(Serialize)]
struct PingJson<'a> {
    store: &'a str,
    address: &'a str,
    connect_us: u128,
    read_us: u128,
    cycle_us: u128,
}

pub(crate) async fn ping(url: Option<String>, args: PingArgs) -> Outcome {
    let pinged = tokio::time::timeout(args.timeout, async {
        let begun = Instant::now();
        let locks = store::connect(url).await?;
        let connected = begun.elapsed();
        let health = locks.check().await?;
        Ok::<_, Failure>((locks, connected, health))
    });
    let (locks, connected, health) = pinged.await.unwrap_or_else(|_| {
        let text = format!("no answer within {}", humantime::format_duration(args.timeout));
        Err(Error::new(ErrorKind::Timeout, text).into())
    })?;
    let (store, address) = (locks.info().scheme.as_str(), locks.info().address.as_str());
    if args.json {
        let [connect_us, read_us, cycle_us] = [connected, health.read, health.cycle].map(|t| t.as_micros());
        json(&PingJson { store, address, connect_us, read_us, cycle_us })?;
    } else {
        let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
        let [reach, read, cycle] = [connected, health.read, health.cycle].map(ms);
        line(format_args!(
            "{address}: connected in {reach}, read in {read}, locked and unlocked in {cycle}"
        ))?;
    }
    let _ = locks.close(store::CLOSE).await;
    Ok(Exit::OK)
}
