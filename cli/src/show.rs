//! `status`, `list`, `evict`, `stores`, `completions`.
//!
//! The JSON of each is a promise: fields are added, never renamed or removed. Tokens are strings, because many readers
//! keep only 53 bits of a number; times are whole milliseconds; what a store does not know is `null`.

use std::io::Write as _;
use std::time::Duration;

use clap::CommandFactory as _;
use clap_complete::Shell;
use onelock::{EntryView, ForeignView, LockName, Locks, Mode, Page, Release};
use serde::Serialize;

use crate::args::{Args, EvictArgs, ListArgs, StatusArgs, StoresArgs};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{clean, human, json, line, table};
use crate::store;

/// How many names one request asks for.
const PAGE: usize = 500;

#[derive(Serialize)]
struct StatusJson<'a> {
    name: &'a str,
    held: bool,
    holders: Vec<EntryJson<'a>>,
    waiters: Vec<EntryJson<'a>>,
}

#[derive(Serialize)]
struct EntryJson<'a> {
    /// None of a holder that is not of onelock.
    token: Option<String>,
    mode: &'static str,
    /// Of a permit: how many there are.
    limit: Option<u32>,
    note: &'a str,
    age_ms: Option<u64>,
    expires_in_ms: Option<u64>,
}

impl<'a> From<&'a EntryView> for EntryJson<'a> {
    fn from(entry: &'a EntryView) -> Self {
        let (mode, limit) = words(entry.mode);
        Self {
            token: Some(entry.token.to_string()),
            mode,
            limit,
            note: &entry.note,
            age_ms: entry.age.map(ms),
            expires_in_ms: entry.expires_in.map(ms),
        }
    }
}

/// What is said of a holder that is not of onelock, where others have their note.
const FOREIGN: &str = "not onelock";

impl From<&ForeignView> for EntryJson<'_> {
    fn from(view: &ForeignView) -> Self {
        let (mode, limit) = words(Mode::Exclusive);
        Self { token: None, mode, limit, note: FOREIGN, age_ms: None, expires_in_ms: view.expires_in.map(ms) }
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn words(mode: Mode) -> (&'static str, Option<u32>) {
    match mode {
        Mode::Exclusive => ("exclusive", None),
        Mode::Shared => ("shared", None),
        Mode::Permit(limit) => ("permit", Some(limit.get())),
    }
}

pub(crate) async fn status(url: Option<String>, args: StatusArgs) -> Outcome {
    let name = LockName::new(&args.name)?;
    let locks = store::connect(url).await?;
    let snapshot = locks.inspect(&name).await;
    store::close(&locks).await;
    let snapshot = snapshot?;
    let held = snapshot.is_held();
    let exit = if held { Exit::OK } else { Exit::NO };
    if args.json {
        json(&StatusJson {
            name: name.as_str(),
            held,
            holders: (snapshot.foreign.iter().map(EntryJson::from))
                .chain(snapshot.holders.iter().map(EntryJson::from))
                .collect(),
            waiters: snapshot.waiters.iter().map(EntryJson::from).collect(),
        })?;
        return Ok(exit);
    }
    if !held && snapshot.waiters.is_empty() {
        line(format_args!("{name} is free"))?;
        return Ok(exit);
    }
    let time = |time: Option<Duration>| time.map_or_else(|| "?".into(), human);
    let row = |state: &str, entry: &EntryView| {
        let mode = match words(entry.mode) {
            (mode, Some(limit)) => format!("{mode}/{limit}"),
            (mode, None) => mode.into(),
        };
        let (age, left) = (time(entry.age), time(entry.expires_in));
        vec![state.into(), entry.token.to_string(), mode, age, left, entry.note.clone()]
    };
    let foreign = snapshot.foreign.iter().map(|view| {
        let left = view.expires_in.map_or_else(|| "no end".into(), human);
        ["holds", "-", words(Mode::Exclusive).0, "?", &left, FOREIGN].map(String::from).to_vec()
    });
    let holders = snapshot.holders.iter().map(|entry| row("holds", entry));
    let waiters = snapshot.waiters.iter().map(|entry| row("waits", entry));
    table(&["STATE", "TOKEN", "MODE", "AGE", "LEASE LEFT", "NOTE"], foreign.chain(holders).chain(waiters))?;
    Ok(exit)
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

#[derive(Serialize)]
struct EvictJson<'a> {
    name: &'a str,
    token: String,
    evicted: bool,
}

pub(crate) async fn evict(url: Option<String>, args: EvictArgs) -> Outcome {
    let name = LockName::new(&args.name)?;
    let locks = store::connect(url).await?;
    let answer = locks.evict(&name, args.token).await;
    store::close(&locks).await;
    let evicted = answer? == Release::Released;
    let token = args.token;
    if args.json {
        json(&EvictJson { name: name.as_str(), token: token.to_string(), evicted })?;
    } else if evicted {
        line(format_args!("evicted token {token} from {name}; its holder learns of it at its next renewal"))?;
    } else {
        line(format_args!("nobody holds {name} or waits for it with token {token}; nothing was done"))?;
    }
    Ok(if evicted { Exit::OK } else { Exit::NO })
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
    options: Vec<OptionJson<'a>>,
}

#[derive(Serialize)]
struct OptionJson<'a> {
    name: &'a str,
    default: &'a str,
    about: &'a str,
}

pub(crate) fn stores(args: &StoresArgs) -> Outcome {
    let drivers = onelock::drivers();
    let mut missing = Vec::new();
    for family in onelock::families() {
        let driver = drivers.iter().find(|driver| driver.name == family.name);
        let specs = driver.map_or(&[][..], |driver| driver.options);
        if args.json {
            let common = if driver.is_some() { onelock::config::OPTIONS } else { &[] };
            let option = |spec: &onelock::OptionSpec| (spec.name, spec.default, spec.about);
            json(&StoreJson {
                name: family.name,
                compiled_in: driver.is_some(),
                schemes: family.schemes,
                feature: family.feature,
                about: driver.map(|driver| driver.about),
                example: driver.map(|driver| driver.example),
                capabilities: driver.map(|driver| &driver.capabilities),
                options: (specs.iter().chain(common).map(option))
                    .map(|(name, default, about)| OptionJson { name, default, about })
                    .collect(),
            })?;
            continue;
        }
        let Some(driver) = driver else {
            missing.push(vec![
                family.name.into(),
                family.feature.unwrap_or("-").into(),
                family.schemes.join(", "),
            ]);
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
            line(format_args!("\nNot in this build; add the cargo feature:"))?;
            table(&["STORE", "FEATURE", "SCHEMES"], missing)?;
        }
    }
    Ok(Exit::OK)
}

/// What a store can do, and which leases, in one line.
fn abilities(of: &onelock::Capabilities) -> String {
    let (has, lacks): (Vec<_>, Vec<_>) = of.flags().into_iter().partition(|(_, has)| *has);
    let names =
        |flags: Vec<(&'static str, bool)>| flags.iter().map(|flag| flag.0).collect::<Vec<_>>().join(", ");
    let lacks = if lacks.is_empty() { String::new() } else { format!("; not {}", names(lacks)) };
    let time = humantime::format_duration;
    format!(
        "{}{lacks}; leases {} to {} in steps of {}",
        names(has),
        time(of.min_lease),
        time(of.max_lease),
        time(of.lease_step)
    )
}

pub(crate) fn completions(shell: Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "onelock", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(Exit::OK)
}
