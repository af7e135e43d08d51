//! Locks in a folder: a store for onelock in one file, as the documentation of `onelock::store` builds it.

use std::fs::File;
use std::io::ErrorKind as IoKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use onelock::clock::{Clock, Timestamp};
use onelock::driver::{Context, Driver, opening};
use onelock::store::{
    Backend, Checked, Info, Raise, Release, Renewal, Renewed, Request, Standing, Ticket, Wake,
};
use onelock::toolkit::Lines;
use onelock::{
    Capabilities, Error, ErrorKind, FencingToken, Listing, LockName, Page, Result, Snapshot, StoreUrl,
};

/// Lines with everything but notifications; and what is not synced a power cut takes.
pub const CAPABILITIES: Capabilities = Capabilities::of_lines().push(false).durable(false);

/// `folder:///run/app/locks`: locks for the processes of one host. The folder is to be gone after a reboot, as those in
/// `/run` are, because leases are written on the boot clock.
pub const DRIVER: Driver = Driver::new("folder", &["folder"], |url, context| opening(open(url, context)))
    .example("folder:///run/app/locks")
    .about("a folder of this host")
    .capabilities(CAPABILITIES);

/// Names share so many files, and each file's names a counter: a step reads and writes only its own.
const FILES: u8 = 64;

/// How often somebody who waits looks.
const POLL: Duration = Duration::from_millis(50);

async fn open(url: StoreUrl, Context { clock, .. }: Context) -> Result<Checked<Folder>> {
    let folder = PathBuf::from(&url.path);
    if !url.hosts.is_empty() || !folder.is_absolute() {
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            "a folder URL has a whole path: folder:///run/app/locks",
        ));
    }
    if !folder.is_dir() {
        return Err(Error::new(ErrorKind::Unavailable, format!("there is no folder {}", folder.display())));
    }
    Ok(Checked::over(Folder(Arc::new(Place { folder, clock }))))
}

#[derive(Debug)]
struct Folder(Arc<Place>);

#[derive(Debug)]
struct Place {
    folder: PathBuf,
    clock: Arc<dyn Clock>,
}

impl Place {
    /// One step: locks, reads, lets `verb` decide, writes what has changed. The kernel frees the lock of a process that dies,
    /// and the state is replaced whole, so nobody sees half a step.
    fn step<T>(&self, file: u8, verb: impl FnOnce(&mut Lines, Timestamp) -> T) -> Result<T> {
        let path = |kind: &str| self.folder.join(format!("{file}.{kind}"));
        let locked = File::options().create(true).append(true).open(path("lock")).map_err(failed)?;
        locked.lock().map_err(failed)?;
        let before = self.read(file)?;
        let mut lines = lines(&before)?;
        let answer = verb(&mut lines, self.clock.now());
        let after = serde_json::to_string(&lines).map_err(foreign)?;
        if after != before {
            let written = std::fs::write(path("new"), after);
            written.and_then(|()| std::fs::rename(path("new"), path("state"))).map_err(failed)?;
        }
        Ok(answer)
    }

    fn read(&self, file: u8) -> Result<String> {
        match std::fs::read_to_string(self.folder.join(format!("{file}.state"))) {
            Err(error) if error.kind() == IoKind::NotFound => Ok(String::new()),
            read => read.map_err(failed),
        }
    }
}

fn file_of(name: &LockName) -> u8 {
    name.as_str().bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte)) % FILES
}

fn lines(text: &str) -> Result<Lines> {
    if text.is_empty() { Ok(Lines::default()) } else { serde_json::from_str(text).map_err(foreign) }
}

/// Nothing was written, or nothing that counts.
fn failed(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the folder cannot be used: {error}")).caused_by(error)
}

fn foreign(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::Foreign, format!("a file is not of this store: {error}")).caused_by(error)
}

impl Folder {
    /// Files block, so a step is made on a thread for that; it goes on when its caller goes away.
    async fn step<T: Send + 'static>(
        &self,
        file: u8,
        verb: impl FnOnce(&mut Lines, Timestamp) -> T + Send + 'static,
    ) -> Result<T> {
        let place = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || place.step(file, verb)).await;
        done.map_err(|error| Error::new(ErrorKind::Unavailable, "the step broke off").caused_by(error))?
    }
}

#[async_trait]
impl Backend for Folder {
    fn info(&self) -> Info {
        Info::new("folder", format!("folder://{}", self.0.folder.display()))
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn acquire(&self, request: &Request) -> Result<Standing> {
        let request = request.clone();
        self.step(file_of(&request.name), move |lines, now| lines.acquire(now, &request)).await?
    }

    /// A look takes no lock. Expired entries are for the next verb to drop: the first waiter knows when to ask.
    async fn wait(&self, ticket: &Ticket) -> Result<Wake> {
        let mut seen = None;
        loop {
            let text = self.0.read(file_of(&ticket.name))?;
            if seen.as_ref() != Some(&text)
                && let Some(wake) = lines(&text)?.wake(ticket)
            {
                return Ok(wake);
            }
            seen = Some(text);
            tokio::time::sleep(POLL).await;
        }
    }

    async fn renew(&self, due: &[Renewal]) -> Vec<Result<Renewed>> {
        let mut answers = Vec::with_capacity(due.len());
        for item in due.iter().cloned() {
            let file = file_of(&item.ticket.name);
            answers.push(self.step(file, move |lines, now| lines.renew(now, &item)).await);
        }
        answers
    }

    async fn release(&self, ticket: &Ticket) -> Result<Release> {
        let ticket = ticket.clone();
        self.step(file_of(&ticket.name), move |lines, now| lines.release(now, &ticket)).await
    }

    async fn raise(&self, ticket: &Ticket, token: FencingToken) -> Result<Raise> {
        let ticket = ticket.clone();
        self.step(file_of(&ticket.name), move |lines, now| lines.raise(now, &ticket, token)).await?
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let name = name.clone();
        self.step(file_of(&name), move |lines, now| lines.inspect(now, &name)).await
    }

    async fn list(&self, prefix: &str, page: &Page) -> Result<Listing> {
        let mut all = Vec::new();
        for file in 0..FILES {
            let (prefix, mut page) = (prefix.to_owned(), page.clone());
            page.limit += 1; // one more tells that there is more, also where one file has all
            all.extend(self.step(file, move |lines, now| lines.list(now, &prefix, &page)).await??.names);
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let more = all.len() > page.limit;
        all.truncate(page.limit);
        let next = all.last().filter(|_| more).map(|last| last.name.to_string());
        Ok(Listing::new(all, next))
    }

    async fn evict(&self, name: &LockName, token: FencingToken) -> Result<Release> {
        let name = name.clone();
        self.step(file_of(&name), move |lines, now| lines.evict(now, &name, token)).await
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
