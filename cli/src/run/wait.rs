//! Taking the lock, and saying who has it meanwhile.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use onelock::{EntryView, Guard, Lock, Locks, Snapshot};
use rustix::process::Signal;

use super::signals::Signals;
use super::terminal;
use crate::exit::Failure;
use crate::output::{clean, human, say};

/// A wait shorter than this is not worth a word.
const PATIENCE: Duration = Duration::from_millis(250);

/// How often a person at a terminal sees fresh news.
const NEWS: Duration = Duration::from_secs(2);

/// How long to wait for the lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    No,
    For(Duration),
    Forever,
}

/// How waiting ended.
pub(super) enum Taken {
    Held(Guard),
    Busy,
    /// By a signal: the lock is not held and no place in the line is kept.
    Interrupted(Signal),
}

/// Waits for the lock, on stderr telling who holds it.
pub(super) async fn take(
    locks: &Locks,
    lock: &Lock,
    wait: Wait,
    signals: &mut Signals,
) -> Result<Taken, Failure> {
    let acquisition = async {
        match wait {
            Wait::No => lock.try_acquire().await,
            Wait::For(time) => lock.acquire_timeout(time).await,
            Wait::Forever => lock.acquire().await.map(Some),
        }
    };
    tokio::select! {
        biased;
        taken = acquisition => Ok(taken?.map_or(Taken::Busy, Taken::Held)),
        signal = interrupted(signals) => Ok(Taken::Interrupted(signal)),
        never = announce(locks, lock) => match never {},
    }
}

/// The first signal that ends a program which does not mind it.
async fn interrupted(signals: &mut Signals) -> Signal {
    loop {
        match signals.next().await {
            Signal::CONT | Signal::WINCH => {}
            Signal::TSTP => {
                if terminal::has_job_control() {
                    terminal::stop_self();
                }
            }
            signal => return signal,
        }
    }
}

/// Says who holds the lock: on a terminal with a spinner that is kept up to date, else in one line.
async fn announce(locks: &Locks, lock: &Lock) -> std::convert::Infallible {
    tokio::time::sleep(PATIENCE).await;
    let spinner = std::io::stderr().is_terminal().then(Spinner::new);
    loop {
        // The wait itself will report a store that fails.
        let news = locks.inspect(lock.name()).await.map(|line| news(&line)).unwrap_or_default();
        let text = format!("waiting for `{}`{news}", lock.name());
        match &spinner {
            Some(Spinner(bar)) => {
                bar.set_message(clean(&text));
                tokio::time::sleep(NEWS).await;
            }
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
    let Some(first) = line.holders.first() else { return String::new() };
    let others = match line.holders.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    format!(", held by {}{others}", holder(first))
}

fn holder(entry: &EntryView) -> String {
    let who = if entry.note.is_empty() { "somebody" } else { &entry.note };
    let since = entry.age.map(|age| {
        let at = std::time::SystemTime::now().checked_sub(age).map(humantime::format_rfc3339_seconds);
        let at = at.map(|at| format!(" (since {at})")).unwrap_or_default();
        format!(" for {}{at}", human(age))
    });
    format!("{who}, token {}{}", entry.token, since.unwrap_or_default())
}

/// A line on the terminal that goes away by itself.
struct Spinner(ProgressBar);

impl Spinner {
    fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onelock::{FencingToken, LockName, Mode};

    #[test]
    fn a_holder_is_described_in_words() {
        let entry = |token| EntryView {
            token: FencingToken::new(token).unwrap(),
            mode: Mode::Shared,
            note: "me@host:1 sleep".into(),
            age: Some(Duration::from_secs(192)),
            expires_in: None,
        };
        let name = LockName::new("a").unwrap();
        let line =
            Snapshot { name: name.clone(), holders: vec![entry(7), entry(8)], waiters: vec![entry(9)] };
        let text = news(&line);
        assert!(text.starts_with(", held by me@host:1 sleep, token 7 for 3m 12s (since 20"), "{text}");
        assert!(text.ends_with(") and 1 more; 1 in line"), "{text}");
        assert_eq!(describe(&Snapshot::empty(name)), "");
    }
}
