//! The test program: every case as a test of its own, for `cargo test` and nextest.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Once, mpsc};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use onelock_core::toolkit::Mutex;

use crate::case::{self, Case, Need};
use crate::ctx::Ctx;
use crate::harness::Harness;
use crate::record::{Notes, Record};
use crate::verdict::{Stop, Verdict};

/// How long a store may take to be there. Servers have shorter limits of their own; on a busy machine a Java one has taken
/// longer than a short case may.
const COME_UP: Duration = Duration::from_secs(180);

/// How long what a case left behind may take to end.
const WIND_UP: Duration = Duration::from_secs(5);

/// Panics as part of a case: without a word, and not as a failure.
pub fn panic_on_purpose() -> ! {
    // Past the hook that notes panics.
    std::panic::resume_unwind(Box::new("a panic on purpose"))
}

/// Runs the suite on a store, as the arguments of the program say. A test file's whole `main`.
pub fn run(harness: impl Harness) -> ExitCode {
    let harness: Arc<dyn Harness> = Arc::new(harness);
    if let Some(code) = crate::worker::run_if_asked(&harness) {
        return code;
    }
    if let Some(code) = crate::trial::run_if_asked(&harness) {
        return code;
    }
    let mut arguments = Arguments::from_args();
    if arguments.test_threads.is_none() {
        arguments.test_threads = Some(harness.threads());
    }
    // The longest begin first, so that none of them is alone at the end.
    let mut cases: Vec<_> = case::all().collect();
    cases.sort_by_key(|case| std::cmp::Reverse(case.limit));
    let trials = cases.into_iter().map(|case| trial(&harness, case)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(harness: &Arc<dyn Harness>, case: &'static Case) -> Trial {
    let name = format!("{}::{}", harness.name(), case.name);
    let harness = Arc::clone(harness);
    Trial::ignorable_test(name, move || match run_case(harness, case) {
        Ok(()) => Ok(Completion::Completed),
        Err(Stop::NotApplicable(reason)) => Ok(Completion::ignored_with(reason)),
        Err(Stop::Failed(text)) => Err(Failed::from(text)),
    })
}

/// How much a run does, and which random choices it makes.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// What volumes are multiplied by: 1 to 100.
    pub volume: u64,
    /// How many cycles a trial makes at least.
    pub cycles: u64,
    /// What replays the random choices.
    pub seed: u64,
}

impl Default for Extent {
    fn default() -> Self {
        Self { volume: 1, cycles: 0, seed: 0x05ee_d0fe_1ec7 }
    }
}

impl Extent {
    /// What `ONELOCK_VOLUME`, `ONELOCK_CYCLES` and `ONELOCK_SEED` say.
    #[must_use]
    pub fn from_env() -> Self {
        let usual = Self::default();
        Self {
            volume: number("ONELOCK_VOLUME").unwrap_or(usual.volume),
            cycles: number("ONELOCK_CYCLES").unwrap_or(usual.cycles),
            seed: number("ONELOCK_SEED").unwrap_or(usual.seed),
        }
    }

    /// How many times as long as usual a case may take.
    fn scale(self) -> u32 {
        u32::try_from(self.volume.max(self.cycles / 500).max(1)).unwrap_or(u32::MAX)
    }
}

/// Runs one case on a fresh store and a runtime of its own, as the environment says; the record goes to the file that
/// `ONELOCK_RECORD` names.
///
/// # Errors
/// How it ended, if not well.
pub fn run_case(harness: Arc<dyn Harness>, case: &'static Case) -> Verdict {
    let extent = Extent::from_env();
    let (verdict, record) = recorded(&harness, case, extent);
    if let Some(file) = std::env::var_os("ONELOCK_RECORD") {
        record.append(Path::new(&file))?;
    }
    verdict.map_err(|stop| match stop {
        Stop::Failed(text) => Stop::Failed(format!("{text}\n(replay with ONELOCK_SEED={})", extent.seed)),
        Stop::NotApplicable(_) => stop,
    })
}

/// Runs one case, and says how it ended twice: for the test program, and for machines.
pub fn recorded(harness: &Arc<dyn Harness>, case: &'static Case, extent: Extent) -> (Verdict, Record) {
    let extent = Extent { volume: extent.volume.clamp(1, 100), ..extent };
    let (started, notes) = (Instant::now(), Arc::new(Notes::default()));
    let verdict = judged(harness, case, extent, &notes);
    let record = notes.record((harness.name(), case.name), extent, &verdict, started.elapsed());
    (verdict, record)
}

fn judged(harness: &Arc<dyn Harness>, case: &'static Case, extent: Extent, notes: &Arc<Notes>) -> Verdict {
    let capabilities = harness.capabilities();
    for need in case.needs {
        if let Some(reason) = need.missing(&capabilities).or_else(|| harness.lacks(*need)) {
            return Err(Stop::NotApplicable(reason));
        }
    }
    let group = case.needs.contains(&Need::Leader);
    watch_panics();
    let thread = format!("{}::{}", harness.name(), case.name);
    let limit = case.limit * extent.scale();
    let (harness, notes) = (Arc::clone(harness), Arc::clone(notes));
    let start = async move {
        let store = if group { harness.start_group().await? } else { harness.start().await? };
        Ok(Ctx::new(harness, store, extent, notes))
    };
    let (done, ended) = mpsc::channel();
    // A thread of its own: a case that spins without ever yielding must be a failure with a name, too.
    std::thread::Builder::new().name(thread.clone()).spawn(move || {
        // Nobody listens any more when it ended after all.
        let _ = done.send(on_a_runtime(start, case, &thread, limit));
    })?;
    let late = |_| Err(Stop::Failed(format!("not done within {limit:?}, and it does not even yield")));
    ended.recv_timeout(COME_UP + limit + WIND_UP * 4).unwrap_or_else(late)
}

fn on_a_runtime(
    start: impl Future<Output = Verdict<Ctx>>,
    case: &'static Case,
    thread: &str,
    limit: Duration,
) -> Verdict {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name(thread)
        .enable_all()
        .build()?;
    let hangs = || format!("not done within {limit:?}: it hangs, or the machine is far too slow");
    let judged = async {
        let late = |_| Stop::Failed(format!("the store was not there within {COME_UP:?}"));
        let ctx = tokio::time::timeout(COME_UP, start).await.map_err(late)??;
        // What a case may take is about the case: no server's start is in it.
        tokio::time::timeout(limit, (case.body)(&ctx)).await.map_err(|_| Stop::Failed(hangs()))?
    };
    let ended = runtime.block_on(AssertUnwindSafe(judged).catch_unwind());
    runtime.shutdown_timeout(WIND_UP);
    let panics = {
        let mut panics = PANICS.lock();
        panics.remove(thread).or_else(|| panics.remove(""))
    };
    let verdict = match ended {
        Ok(verdict) => verdict,
        Err(payload) => Err(Stop::Failed(format!("the case panicked: {}", text_of(&*payload)))),
    };
    match panics {
        Some(text) if !matches!(verdict, Err(Stop::Failed(_))) => {
            Err(Stop::Failed(format!("a task panicked: {text}")))
        }
        _ => verdict,
    }
}

/// A number from the environment.
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The first panic on a thread of each case; without a name, on one beside them, which fails the case that ends next.
static PANICS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Notes panics in tasks, which nobody else would see.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = text_of(info.payload());
            let at = info.location().map(ToString::to_string).unwrap_or_default();
            let thread = std::thread::current();
            let case = thread.name().filter(|name| name.contains("::")).unwrap_or_default();
            PANICS.lock().entry(case.to_owned()).or_insert_with(|| format!("{text} at {at}"));
            before(info);
        }));
    });
}

fn text_of(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "(no text)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aside::Aside;
    use crate::harness::memory::Memory;

    #[test]
    fn a_panic_beside_a_case_fails_it() {
        const BESIDE: Case = Case {
            name: "beside",
            clauses: &[],
            needs: &[],
            limit: COME_UP,
            body: |_| {
                Box::pin(async {
                    let aside = Aside::start()?;
                    let _panicked = aside.handle.spawn(async { panic!("of a task beside it") }).await;
                    aside.end().await
                })
            },
        };
        let harness: Arc<dyn Harness> = Arc::new(Memory::new());
        let (verdict, _) = recorded(&harness, &BESIDE, Extent::default());
        assert!(verdict.is_err_and(|stop| stop.to_string().contains("of a task beside it")));
    }
}
