//! Taking the lock, and saying who has it meanwhile.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime};

use console::{Term, truncate_str};
use onelock::{EntryView, Error, ErrorKind, ForeignView, Guard, Lock, Locks, Snapshot};
use rustix::process::Signal;

use super::signals::Signals;
use super::terminal;
use crate::deadman::group;
use crate::exit::Failure;
use crate::output::{clean, human, put, say};
use crate::store;

/// A wait shorter than this is not worth a word.
const PATIENCE: Duration = Duration::from_millis(250);

/// How often a person at a terminal sees fresh news.
const NEWS: Duration = Duration::from_secs(2);

/// How long the store may take, once the wait is over, to say who holds the lock, and to take back a place in the line.
pub(super) const LAST_WORD: Duration = Duration::from_millis(500);

/// Until when to wait for the lock, and for a store that is away.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    No,
    Until(Instant),
    Forever,
}

impl Wait {
    /// As the command line says it.
    pub(super) fn new(begun: Instant, time: Option<Duration>, none: bool) -> Self {
        match time {
            _ if none => Self::No,
            // A time too long for the clock is for ever.
            Some(time) => begun.checked_add(time).map_or(Self::Forever, Self::Until),
            None => Self::Forever,
        }
    }

    /// What is left of it; `None` for ever.
    fn left(self) -> Option<Duration> {
        match self {
            Self::No => Some(Duration::ZERO),
            Self::Until(end) => Some(end.saturating_duration_since(Instant::now())),
            Self::Forever => None,
        }
    }

    fn is_over(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}

/// How waiting ended.
pub(super) enum Taken {
    Held(Guard),
    Busy,
    /// By a signal: the lock is not held and no place in the line is kept.
    Interrupted(Signal),
}

/// A store that is away: said once, and waited for as long as the lock is.
struct StoreOutage {
    wait: Wait,
    said: bool,
    pause: Duration,
}

impl StoreOutage {
    /// The first and the longest pause before the store is asked again.
    const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

    fn new(wait: Wait) -> Self {
        Self { wait, said: false, pause: Self::PAUSES.0 }
    }

    /// Waits a little after an error that a retry may mend.
    ///
    /// # Errors
    /// The error itself, when it is of another kind or nothing is left of the wait.
    async fn over(&mut self, error: Error) -> Result<(), Error> {
        if !error.is_retryable() || self.wait.is_over() {
            return Err(error);
        }
        if !self.said {
            self.said = true;
            say(format_args!("waiting for the store: {error}"));
        }
        tokio::time::sleep(self.wait.left().map_or(self.pause, |left| left.min(self.pause))).await;
        self.pause = (self.pause * 2).min(Self::PAUSES.1);
        // Another try may take as long as the store's time-outs.
        if self.wait.is_over() { Err(error) } else { Ok(()) }
    }
}

/// The client, or the signal that came first.
type Connected = Result<Locks, Signal>;

/// Connects to the store. One that is away is waited for, and a signal ends that as well.
pub(super) async fn connect(url: &str, wait: Wait, signals: &mut Signals) -> Result<Connected, Failure> {
    tokio::select! {
        biased;
        connected = reach(url, wait) => connected.map(Ok),
        signal = interrupted(signals) => Ok(Err(signal)),
    }
}

async fn reach(url: &str, wait: Wait) -> Result<Locks, Failure> {
    let mut outage = StoreOutage::new(wait);
    loop {
        let connected = store::connect(Some(url.to_owned()));
        // Without a wait the store's own time-outs are its bounds.
        let connected = match wait.left().filter(|left| !left.is_zero()) {
            None => connected.await,
            Some(left) => tokio::time::timeout(left, connected).await.unwrap_or_else(|_| {
                let text = "the store did not answer before the wait was over";
                Err(Error::new(ErrorKind::Timeout, text).into())
            }),
        };
        match connected {
            Err(Failure::Lock(error)) => outage.over(error).await?,
            connected => return connected,
        }
    }
}

/// Waits for the lock, on stderr telling who holds it. A store that goes away is waited for, too.
pub(super) async fn take(
    locks: &Locks,
    lock: &Lock,
    wait: Wait,
    signals: &mut Signals,
) -> Result<Taken, Failure> {
    let mut outage = StoreOutage::new(wait);
    loop {
        let acquisition = async {
            match (wait, wait.left()) {
                (Wait::No, _) => lock.try_acquire().await,
                (_, Some(left)) => lock.acquire_timeout(left).await,
                (_, None) => lock.acquire().await.map(Some),
            }
        };
        let answered = Cell::new(false);
        let error = tokio::select! {
            biased;
            taken = acquisition => match taken {
                Ok(taken) => return Ok(taken.map_or(Taken::Busy, Taken::Held)),
                Err(error) => error,
            },
            signal = interrupted(signals) => return Ok(Taken::Interrupted(signal)),
            never = announce(locks, lock, &answered) => match never {},
        };
        if answered.get() {
            // It was there meanwhile: another outage.
            outage = StoreOutage::new(wait);
        }
        tokio::select! {
            biased;
            over = outage.over(error) => over?,
            signal = interrupted(signals) => return Ok(Taken::Interrupted(signal)),
        }
    }
}

/// The first signal that ends a program which does not mind it.
pub(super) async fn interrupted(signals: &mut Signals) -> Signal {
    loop {
        match signals.next().await {
            Signal::TSTP if terminal::has_job_control() => terminal::stop_self(),
            Signal::TSTP | Signal::CONT | Signal::WINCH | Signal::TTIN | Signal::TTOU => {}
            Signal::USR1 | Signal::USR2 if signals.service => {}
            signal => return signal,
        }
    }
}

/// Says who holds the lock, once the store has answered that: on a terminal with a spinner that is kept up to date, else
/// in one line.
async fn announce(locks: &Locks, lock: &Lock, answered: &Cell<bool>) -> std::convert::Infallible {
    tokio::time::sleep(PATIENCE).await;
    let spinner = draws().then(|| Spinner(Instant::now()));
    loop {
        let news = match locks.inspect(lock.name()).await {
            Ok(line) => news(&line),
            // The wait itself reports a store that fails.
            Err(error) if error.is_retryable() => {
                tokio::time::sleep(NEWS).await;
                continue;
            }
            Err(_) => String::new(),
        };
        answered.set(true);
        let text = format!("waiting for `{}`{news}", lock.name());
        match &spinner {
            Some(spinner) => spinner.show(&text).await,
            None => {
                say(format_args!("{text}"));
                return std::future::pending().await;
            }
        }
    }
}

/// Who holds, since when, and how many wait, ourselves among them.
fn news(line: &Snapshot) -> String {
    match line.waiters.len() {
        0 => describe(line),
        n => format!("{}; {n} in line", describe(line)),
    }
}

/// Who holds and since when: as the rest of a sentence that begins with the name.
pub(super) fn describe(line: &Snapshot) -> String {
    let Some(first) = line.holders.first() else {
        return line.foreign.first().map(foreign).unwrap_or_default();
    };
    let others = match line.holders.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    format!(", held by {}{others}", holder(first))
}

/// A holder of another library, who has no token and says nothing of itself.
fn foreign(view: &ForeignView) -> String {
    let left = view
        .expires_in
        .map_or_else(|| ", without an end".into(), |left| format!(", for {} yet", human(left)));
    format!(", held by a program that is not onelock{left}")
}

fn holder(entry: &EntryView) -> String {
    let who = if entry.note.is_empty() { "somebody" } else { &entry.note };
    let since = entry.age.map(|age| {
        // Before 1970 it was not: this clock is yet to be set.
        let at = SystemTime::now().checked_sub(age).filter(|at| *at >= SystemTime::UNIX_EPOCH);
        let at = at.map(humantime::format_rfc3339_seconds).map(|at| format!(" (since {at})"));
        format!(" for {}{}", human(age), at.unwrap_or_default())
    });
    format!("{who}, token {}{}", entry.token, since.unwrap_or_default())
}

/// Whether the terminal can draw a line anew, and is our job's: another one's user may be typing there.
fn draws() -> bool {
    let ours = rustix::termios::tcgetpgrp(std::io::stderr()).is_ok_and(|job| Some(job) == group::own());
    ours && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// A line on the terminal that goes away with its end. No thread draws it: one that a stopped terminal keeps (Ctrl-S) would
/// keep this one, too.
struct Spinner(Instant);

impl Spinner {
    /// Shows what is new, for as long as it is.
    async fn show(&self, text: &str) {
        for sign in "⠁⠂⠄⡀⢀⠠⠐⠈".chars() {
            let line = format!("{sign} {}s {}", self.0.elapsed().as_secs(), clean(text));
            draw(&truncate_str(&line, Term::stderr().size().1.into(), "…"));
            tokio::time::sleep(NEWS / 8).await;
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        draw("");
    }
}

fn draw(line: &str) {
    if draws() {
        put(&format!("\r\x1b[2K{line}"), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onelock::{FencingToken, LockName, Mode};

    #[test]
    fn a_holder_is_described_in_words() {
        let entry = |token| {
            let view = EntryView::new(FencingToken::new(token).unwrap(), Mode::Shared, "me@host:1 sleep");
            view.age(Duration::from_secs(192))
        };
        let name = LockName::new("a").unwrap();
        let line = Snapshot::new(name.clone(), vec![entry(7), entry(8)], vec![entry(9)]);
        let text = news(&line);
        assert!(text.starts_with(", held by me@host:1 sleep, token 7 for 3m 12s (since 20"), "{text}");
        assert!(text.ends_with(") and 1 more; 1 in line"), "{text}");
        assert_eq!(describe(&Snapshot::empty(name.clone())), "");
        let mut line = Snapshot::empty(name);
        line.foreign.push(ForeignView::new(Some(Duration::from_secs(9))));
        assert_eq!(describe(&line), ", held by a program that is not onelock, for 9s yet");
    }
}
