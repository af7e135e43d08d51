//! A client on a runtime of its own, so that it can die as a process does.

use std::future::Future;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::subject::Failure;

type Job = Box<dyn FnOnce(&Runtime) + Send>;

/// A thread with a runtime. Its tasks go on only while [`run`](Self::run) does.
///
/// When it ends, all tasks end where they stand, and what they own is closed: sockets end as the kernel ends them when
/// a process is killed, and nothing can be sent after that.
#[derive(Debug)]
pub struct Lab {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

impl Lab {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread or no runtime.
    pub fn start() -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (jobs, todo) = channel::<Job>();
        let work = move || {
            for job in todo {
                job(&runtime);
            }
        };
        let thread = Builder::new().name("lab".into()).spawn(work)?;
        Ok(Self { jobs, thread })
    }

    /// Does `work` there.
    ///
    /// # Errors
    /// When it panicked.
    ///
    /// # Cancel safety
    /// The work goes on to its end.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Failure> {
        let (done, result) = oneshot::channel();
        let job: Job = Box::new(move |runtime| {
            // Nobody may wait for it any more.
            let _ = done.send(runtime.block_on(work));
        });
        self.jobs.send(job).map_err(|_| "a client's thread has ended")?;
        Ok(result.await?)
    }

    /// Ends the runtime, and then does `after` outside of it.
    ///
    /// # Errors
    /// When the thread panicked.
    ///
    /// # Cancel safety
    /// The end goes on.
    pub async fn end(self, after: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
        drop(self.jobs);
        let thread = self.thread;
        let end = move || {
            let ended = thread.join();
            after();
            ended.map_err(|_| "a client's thread has panicked")
        };
        Ok(tokio::task::spawn_blocking(end).await??)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[tokio::test]
    async fn nothing_outlives_a_lab() -> Result<(), Failure> {
        let lab = Lab::start()?;
        let owned = Arc::new(());
        let task = Arc::clone(&owned);
        let sum = lab
            .run(async move {
                tokio::spawn(async move {
                    std::future::pending::<()>().await;
                    drop(task);
                });
                2 + 2
            })
            .await?;
        assert_eq!((sum, Arc::strong_count(&owned)), (4, 2));
        let (after, was_alone) = (Arc::new(AtomicBool::new(false)), Arc::clone(&owned));
        let seen = Arc::clone(&after);
        lab.end(move || seen.store(Arc::strong_count(&was_alone) == 2, Ordering::SeqCst)).await?;
        assert!(after.load(Ordering::SeqCst), "the task was gone before what comes after");
        Ok(())
    }
}
