//! `stores`: what this build can reach, and how.

use clap::Parser;
use serde::Serialize;

use crate::absent::adding;
use crate::exit::{Exit, Outcome};
use crate::output::{json, line, table};

#[derive(Debug, Parser)]
pub(crate) struct StoresArgs {
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct StoreJson<'a> {
    name: &'a str,
    compiled_in: bool,
    schemes: &'a [&'a str],
    /// The cargo feature that compiles it in.
    feature: Option<&'a str>,
    about: Option<&'a str>,
    example: Option<&'a str>,
    capabilities: Option<&'a onelock::Capabilities>,
    options: Vec<&'a onelock::OptionSpec>,
}

pub(crate) fn stores(args: &StoresArgs) -> Outcome {
    let drivers = onelock::drivers();
    let mut missing = Vec::new();
    for family in onelock::families() {
        let driver = drivers.iter().find(|driver| driver.name == family.name);
        let specs = driver.map_or(&[][..], |driver| driver.options);
        if args.json {
            let common = if driver.is_some() { onelock::config::OPTIONS } else { &[] };
            json(&StoreJson {
                name: family.name,
                compiled_in: driver.is_some(),
                schemes: family.schemes,
                feature: family.feature,
                about: driver.map(|driver| driver.about),
                example: driver.map(|driver| driver.example),
                capabilities: driver.map(|driver| &driver.capabilities),
                options: specs.iter().chain(common).collect(),
            })?;
            continue;
        }
        let Some(driver) = driver else {
            let row = [family.name, family.feature.unwrap_or("-"), &family.schemes.join(", ")];
            missing.push(row.map(Into::into).into());
            continue;
        };
        line(format_args!("{}: {}", driver.name, driver.about))?;
        line(format_args!("  schemes  {}", driver.schemes.join(", ")))?;
        line(format_args!("  example  {}", driver.example))?;
        line(format_args!("  can      {}", abilities(&driver.capabilities)))?;
        for spec in specs {
            line(format_args!("  option   {}={}  {}", spec.name, spec.default, spec.about))?;
        }
        line(format_args!(""))?;
    }
    if !args.json {
        line(format_args!("Options of every store:"))?;
        for spec in onelock::config::OPTIONS {
            line(format_args!("  {}={}  {}", spec.name, spec.default, spec.about))?;
        }
        if !missing.is_empty() {
            line(format_args!("\nNot in this build; {}:", adding("FEATURE")))?;
            table(&["STORE", "FEATURE", "SCHEMES"], missing)?;
        }
    }
    Ok(Exit::OK)
}

/// What a store can do, and which leases, in one line.
fn abilities(of: &onelock::Capabilities) -> String {
    let (has, lacks): (Vec<_>, Vec<_>) = of.flags().into_iter().partition(|(_, has)| *has);
    let names = |flags: Vec<(&str, bool)>| flags.iter().map(|flag| flag.0).collect::<Vec<_>>().join(", ");
    let lacks = if lacks.is_empty() { String::new() } else { format!("; not {}", names(lacks)) };
    let [least, most, step] = [of.min_lease, of.max_lease, of.lease_step].map(humantime::format_duration);
    format!("{}{lacks}; leases {least} to {most} in steps of {step}", names(has))
}
