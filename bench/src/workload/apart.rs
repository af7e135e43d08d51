//! Contenders of one name, each in a process of its own: the program starts itself again.
//!
//! Both sides speak in lines of JSON: the program tells what to do and, when all are ready, until when; a contender tells
//! what came of it. Moments are of the boot clock, which all processes of a host share.

use std::io::BufRead as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::try_join_all;
use onelock::{BootClock, Clock as _};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::Barrier;

use super::crowd::{Crowd, Habit, contend};
use super::crowds::{ANSWER, BEGIN, CONTENDERS, HOLD, hand_over};
use super::{About, Effort, Size, Workload, fresh_name, per_operation};
use crate::measure::{Sample, Stretch};
use crate::ours::Ours;
use crate::subject::{Ask, Failure, LEASE, Mode, Need, Subject};
use crate::trace::{Trace, Turn};

const NO_HOLD: &str = "no hold";
/// Tells a contender's answers from what else its program may print.
const MARK: &str = "contender: ";

pub(super) struct Processes;

#[async_trait]
impl Workload for Processes {
    fn about(&self) -> About {
        About::new("processes", "As hand-over, but each of the eight clients is a process of its own; and once more with nothing done while \
         holding.").latency("`from begin` and `from answer` as in hand-over, to the grant in another process; `no hold` from the call of \
             acquire to the grant").needs(&[Need::Apart, Need::Wait])
    }

    fn sizes(&self, _: &Effort) -> Vec<Size> {
        [BEGIN, ANSWER, NO_HOLD].map(|name| Size { name: name.into(), tasks: CONTENDERS, fair: true }).into()
    }

    async fn run(&self, subject: &Arc<dyn Subject>, size: &Size, effort: &Effort) -> Result<Sample, Failure> {
        let hold = if size.name == NO_HOLD { Duration::ZERO } else { HOLD };
        let habit = Habit { hold, ..Habit::busy(Mode::Exclusive, true) };
        let crowd = apart(self.about().id, subject, habit, size.count(), effort).await?;
        if size.name == NO_HOLD {
            return Ok(crowd.exclusive(crowd.sample(|_| true)?));
        }
        hand_over(size, &crowd)
    }
}

/// What a contender is to do.
#[derive(Serialize, Deserialize)]
struct Job {
    url: String,
    name: String,
    habit: Habit,
}

/// What a contender says.
#[derive(Serialize, Deserialize)]
enum Said {
    Ready,
    Failed(String),
    Done {
        turns: Vec<[u64; 4]>,
        /// Its processor time, as a share of a core.
        share: f64,
    },
}

/// The moments of this process on the clock that all processes share, in nanoseconds.
#[derive(Clone, Copy)]
struct Moments {
    here: Instant,
    there: u64,
}

impl Moments {
    fn now() -> Self {
        Self { here: Instant::now(), there: nanos(BootClock.now().since_origin()) }
    }

    fn tell(&self, at: Instant) -> u64 {
        let (after, before) =
            (at.saturating_duration_since(self.here), self.here.saturating_duration_since(at));
        self.there.saturating_add(nanos(after)).saturating_sub(nanos(before))
    }

    fn read(&self, at: u64) -> Instant {
        let (after, before) = (at.saturating_sub(self.there), self.there.saturating_sub(at));
        let here = self.here + Duration::from_nanos(after);
        here.checked_sub(Duration::from_nanos(before)).unwrap_or(here)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Lets so many contenders work, each in a process of its own.
async fn apart(
    workload: &str,
    subject: &Arc<dyn Subject>,
    habit: Habit,
    count: usize,
    effort: &Effort,
) -> Result<Crowd, Failure> {
    let start = effort.contender.ok_or("this program cannot start itself as a contender")?;
    let url = subject.url().ok_or("other processes cannot reach it")?;
    let job = serde_json::to_string(&Job { url, name: fresh_name(workload), habit })?;
    let mut contenders = (0..count).map(|_| Contender::start(start()?)).collect::<Result<Vec<_>, _>>()?;
    try_join_all(contenders.iter_mut().map(async |contender| {
        contender.tell(&job).await?;
        match contender.hear().await? {
            Said::Ready => Ok(()),
            _ => Err(Failure::from("a contender did not wait for the others")),
        }
    }))
    .await?;
    let before = subject.served().await?;
    let moments = Moments::now();
    let from = moments.here + effort.warm_up;
    let until = from + effort.time;
    let told = moments.tell(until).to_string();
    let all = try_join_all(contenders.iter_mut().map(async |contender| {
        contender.tell(&told).await?;
        match contender.hear().await? {
            Said::Done { turns, share } => Ok((turns, share)),
            _ => Err(Failure::from("a contender did not say what it had done")),
        }
    }))
    .await?;
    let mut turns = Vec::new();
    for (contender, (theirs, _)) in all.iter().enumerate() {
        turns.extend(theirs.iter().map(|at| {
            let [asked, granted, leaving, left] = at.map(|at| moments.read(at));
            Turn { contender, asked, granted, leaving, left }
        }));
    }
    let requests = per_operation(before, subject.served().await?, turns.len() as u64);
    for contender in &mut contenders {
        contender.child.wait().await?;
    }
    let share = all.iter().map(|(_, share)| share).sum();
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
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let input = child.stdin.take().ok_or("a contender has no input")?;
        let output = BufReader::new(child.stdout.take().ok_or("a contender has no output")?).lines();
        Ok(Self { child, input, output })
    }

    async fn tell(&mut self, line: &str) -> Result<(), Failure> {
        Ok(self.input.write_all(format!("{line}\n").as_bytes()).await?)
    }

    async fn hear(&mut self) -> Result<Said, Failure> {
        while let Some(line) = self.output.next_line().await? {
            let Some((_, said)) = line.split_once(MARK) else { continue };
            return match serde_json::from_str(said)? {
                Said::Failed(why) => Err(why.into()),
                said => Ok(said),
            };
        }
        Err("a contender has ended before it was done".into())
    }
}

/// Contends as the process that started this one says on the standard input, and answers on the standard output.
///
/// # Errors
/// When the one cannot be read or the other not be written. What goes wrong with the lock is part of the answer.
pub fn serve() -> Result<(), Failure> {
    let mut lines = std::io::stdin().lock().lines();
    let mut read =
        || lines.next().ok_or("nothing more is said").map_err(Failure::from)?.map_err(Failure::from);
    let job: Job = serde_json::from_str(&read()?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let work = async {
        let client = Ours::new(None, &job.url)?.connect(LEASE).await?;
        let Habit { mode, fair, .. } = job.habit;
        let lock = client.prepare(&Ask { name: &job.name, mode, fair })?;
        // The first request of a connection may bring others with it.
        lock.take().await?.release().await?;
        say(&Said::Ready)?;
        let until: u64 = read()?.parse()?;
        let (moments, stretch) = (Moments::now(), Stretch::begin());
        let turns = contend(0, lock, job.habit, moments.read(until), Arc::new(Barrier::new(1))).await?;
        let share = stretch.share();
        client.close().await?;
        let turns = turns
            .iter()
            .map(|turn| [turn.asked, turn.granted, turn.leaving, turn.left].map(|at| moments.tell(at)));
        Ok::<_, Failure>(Said::Done { turns: turns.collect(), share })
    };
    let said = runtime.block_on(work).unwrap_or_else(|error| Said::Failed(error.to_string()));
    say(&said)
}

fn say(said: &Said) -> Result<(), Failure> {
    use std::io::Write as _;
    let line = serde_json::to_string(said)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{MARK}{line}")?;
    Ok(out.flush()?)
}
