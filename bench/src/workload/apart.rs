//! Contenders of one name, each in a process of its own: the program starts itself again.
//!
//! Both sides speak in lines of JSON: the program says what to do and, when all are ready, until when; a contender answers
//! what came of it. Moments are of the boot clock, which all processes of a host share.

use std::io::Write as _;
use std::process::{Command, Stdio};

use futures_util::future::try_join_all;
use onelock::{BootClock, Clock as _, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::crowd::{Crowd, Habit, contend};
use super::crowds::{ANSWER, BEGIN, CONTENDERS, HOLD, hand_over};
use super::{Size, Task, Workload};
use crate::measure::{Sample, Stretch};
use crate::ours::Ours;
use crate::subject::{Failure, LEASE, LockSpec, Need, Subject as _};
use crate::trace::{Trace, Turn};

const NO_HOLD: &str = "no hold";
/// Tells a contender's answers from what else its program may print.
const MARK: &str = "contender: ";

pub(super) const PROCESSES: Workload = Workload {
    latency: Some(
        "`from begin` and `from answer` as in hand-over, to the grant in another process; `no hold` from the call of \
         acquire to the grant",
    ),
    needs: &[Need::Apart, Need::Wait],
    sizes: |_| [BEGIN, ANSWER, NO_HOLD].map(|name| Size::of(name, CONTENDERS)).into(),
    ..Workload::new(
        "processes",
        "As hand-over, but each of the eight clients is a process of its own; and once more with nothing done while \
         holding.",
        |task| Box::pin(processes(task)),
    )
};

async fn processes(task: &Task) -> Result<Sample, Failure> {
    if task.size.name == NO_HOLD {
        let crowd = apart(task, Habit::BUSY).await?;
        return crowd.exclusive(crowd.waits(|_| true));
    }
    hand_over(&task.size, &apart(task, Habit { hold: HOLD, ..Habit::BUSY }).await?)
}

/// What a contender is to do.
#[derive(Serialize, Deserialize)]
struct Job {
    url: String,
    name: String,
    habit: Habit,
}

/// What a contender has done.
#[derive(Default, Serialize, Deserialize)]
struct Done {
    turns: Vec<Turn>,
    /// Its processor time, as a share of a core.
    share: f64,
}

/// Lets contenders work, each in a process of its own.
async fn apart(task: &Task, habit: Habit) -> Result<Crowd, Failure> {
    let start = task.effort.contender.ok_or("this program cannot start itself as a contender")?;
    let url = task.subject.url().ok_or("other processes cannot reach it")?;
    let job = Job { url, name: task.name.clone(), habit };
    let count = task.size.count();
    let mut contenders = (0..count).map(|_| Contender::start(start()?)).collect::<Result<Vec<_>, _>>()?;
    // Each answers when it is ready.
    try_join_all(contenders.iter_mut().map(|contender| contender.ask(&job))).await?;
    let before = task.served().await?;
    let from = BootClock.now() + task.effort.warm_up;
    let until = from + task.effort.time;
    let all = try_join_all(contenders.iter_mut().map(|contender| contender.ask(&until))).await?;
    let share = all.iter().map(|done| done.share).sum();
    let own = all.into_iter().enumerate();
    let turns =
        own.flat_map(|(contender, done)| done.turns.into_iter().map(move |turn| Turn { contender, ..turn }));
    let turns: Vec<_> = turns.collect();
    let requests = task.served_since(before).await?.map(|requests| requests / turns.len() as f64);
    for contender in &mut contenders {
        contender.child.wait().await?;
    }
    Ok(Crowd { trace: Trace::new(turns, count, from, until), requests, share })
}

/// A process that contends; killed when dropped.
struct Contender {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Contender {
    fn start(command: Command) -> Result<Self, Failure> {
        let mut command = tokio::process::Command::from(command);
        // A terminal's Ctrl-C is for the program that measures: the present sample goes on.
        command.process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let input = child.stdin.take().ok_or("a contender has no input")?;
        let output = BufReader::new(child.stdout.take().ok_or("a contender has no output")?).lines();
        Ok(Self { child, input, output })
    }

    /// Says something to it, and waits for its answer.
    async fn ask(&mut self, what: &impl Serialize) -> Result<Done, Failure> {
        self.input.write_all(format!("{}\n", serde_json::to_string(what)?).as_bytes()).await?;
        while let Some(line) = self.output.next_line().await? {
            if let Some((_, said)) = line.split_once(MARK) {
                return Ok(serde_json::from_str::<Result<Done, String>>(said)??);
            }
        }
        Err("a contender has ended before it was done".into())
    }
}

/// Contends as the process that started this one says on the standard input, and answers on the standard output.
///
/// # Errors
/// When the one cannot be read or the other not be written. What goes wrong with the lock is part of the answer.
pub fn serve() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    answer(&runtime.block_on(work()).map_err(|error| error.to_string()))
}

async fn work() -> Result<Done, Failure> {
    let Job { url, name, habit } = read()?;
    let client = Ours::new(None, &url)?.connect(LEASE).await?;
    let lock = client.prepare(&LockSpec { name: &name, mode: habit.mode, fair: habit.fair })?;
    // The first request of a connection may bring others with it.
    lock.take().await?.release().await?;
    answer(&Ok(Done::default()))?;
    let until: Timestamp = read()?;
    let stretch = Stretch::begin();
    let turns = contend(0, &*lock, habit, until).await?;
    let share = stretch.share();
    client.close().await?;
    Ok(Done { turns, share })
}

fn read<T: DeserializeOwned>() -> Result<T, Failure> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

fn answer(done: &Result<Done, String>) -> Result<(), Failure> {
    let line = serde_json::to_string(done)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{MARK}{line}")?;
    Ok(out.flush()?)
}
