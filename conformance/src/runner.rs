//! The test program: every case as a test of its own, for `cargo test` and nextest.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::{Arc, LazyLock, Mutex, Once, PoisonError, mpsc};
use std::time::Duration;

use futures_util::FutureExt as _;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::case::{self, Case};
use crate::ctx::Ctx;
use crate::harness::Harness;
use crate::verdict::{Stop, Verdict};

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
    let mut arguments = Arguments::from_args();
    if arguments.test_threads.is_none() {
        arguments.test_threads = Some(harness.threads());
    }
    let trials = case::all().map(|case| trial(&harness, case)).collect();
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

/// Runs one case on a fresh store and a runtime of its own.
///
/// # Errors
/// How it ended, if not well.
pub fn run_case(harness: Arc<dyn Harness>, case: &'static Case) -> Verdict {
    let capabilities = harness.capabilities();
    for need in case.needs {
        if let Some(reason) = need.missing(&capabilities).or_else(|| harness.lacks(*need)) {
            return Err(Stop::NotApplicable(reason));
        }
    }
    watch_panics();
    let thread = format!("{}::{}", harness.name(), case.name);
    let volume = number("ONELOCK_VOLUME").unwrap_or(1).clamp(1, 100);
    let limit = case.limit * u32::try_from(volume).unwrap_or(1);
    let (done, ended) = mpsc::channel();
    // A thread of its own: a case that spins without ever yielding must be a failure with a name, too.
    std::thread::Builder::new().name(thread.clone()).spawn(move || {
        // Nobody listens any more when it ended after all.
        let _ = done.send(on_a_runtime(harness, case, &thread, limit, volume));
    })?;
    let late = |_| Err(Stop::Failed(format!("not done within {limit:?}, and it does not even yield")));
    ended.recv_timeout(limit + WIND_UP * 4).unwrap_or_else(late)
}

fn on_a_runtime(
    harness: Arc<dyn Harness>,
    case: &'static Case,
    thread: &str,
    limit: Duration,
    volume: u64,
) -> Verdict {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name(thread)
        .enable_all()
        .build()?;
    let seed = number("ONELOCK_SEED").unwrap_or(0x05ee_d0fe_1ec7);
    let body = async {
        let store = harness.start().await?;
        let ctx = Ctx::new(Arc::clone(&harness), store, seed, volume);
        (case.body)(&ctx).await
    };
    let guarded = AssertUnwindSafe(async { tokio::time::timeout(limit, body).await }).catch_unwind();
    let ended = runtime.block_on(guarded);
    runtime.shutdown_timeout(WIND_UP);
    let panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner).remove(thread);
    let verdict = match ended {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(_)) => {
            Err(Stop::Failed(format!("not done within {limit:?}: it hangs, or the machine is far too slow")))
        }
        Err(payload) => Err(Stop::Failed(format!("the case panicked: {}", text_of(&*payload)))),
    };
    match panics {
        Some(text) if verdict.is_ok() => Err(Stop::Failed(format!("a task panicked: {text}"))),
        _ => verdict,
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The first panic on a thread of each case.
static PANICS: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

/// Notes panics in tasks, which nobody else would see.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = text_of(info.payload());
            let at = info.location().map(ToString::to_string).unwrap_or_default();
            if let Some(thread) = std::thread::current().name() {
                let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
                panics.entry(thread.to_owned()).or_insert_with(|| format!("{text} at {at}"));
            }
            before(info);
        }));
    });
}

fn text_of(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "(no text)".to_owned())
}
