//! Drivers: how a URL becomes a backend. Plain data, so that a list of them documents itself.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::backend::Backend;
use crate::capabilities::Capabilities;
use crate::clock::Clock;
use crate::error::Result;
pub use crate::store::options::OptionSpec;
use crate::url::StoreUrl;

/// The future of [`Driver::open`].
pub type Opening = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>>> + Send>>;

/// What opens a backend.
type Open = fn(StoreUrl, Context) -> Opening;

/// The future of a driver that opens by `connect`. Outside of a Tokio runtime it says so.
pub fn opening<B: Backend>(connect: impl Future<Output = Result<B>> + Send + 'static) -> Opening {
    Box::pin(async move {
        crate::client::runtime::current()?;
        Ok(Arc::new(connect.await?) as Arc<dyn Backend>)
    })
}

/// What a backend is opened in.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Context {
    /// The client's clock; a store that runs in this process keeps its leases on it.
    pub clock: Arc<dyn Clock>,
}

impl Context {
    /// On this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock }
    }
}

/// One store family member: its schemes, its options and how to open it.
///
/// ```
/// use onelock_core::driver::{Driver, opening};
/// use onelock_core::{Capabilities, MemoryBackend, MemoryStore};
///
/// const MINE: Driver = Driver::new("mine", &["mine"], |_url, context| {
///     opening(async move { Ok(MemoryBackend::new(&MemoryStore::new(context.clock))) })
/// })
/// .about("a store of my own")
/// .example("mine://host:7000")
/// .capabilities(Capabilities::of_lines());
/// assert_eq!(MINE.schemes, ["mine"]);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[must_use]
pub struct Driver {
    /// The name people use: `redis`, `sqlite`.
    pub name: &'static str,
    /// The schemes of its URLs, the usual one first.
    pub schemes: &'static [&'static str],
    /// An example URL.
    pub example: &'static str,
    /// One line that says what it is.
    pub about: &'static str,
    /// What it can do with the options and the server's settings as they are by default; an opened backend says it
    /// exactly.
    pub capabilities: Capabilities,
    /// Its own options, beside those of [`crate::config::OPTIONS`].
    pub options: &'static [OptionSpec],
    open: Open,
}

impl Driver {
    /// A driver that opens by `open`: it checks the URL before any I/O, then connects. See [`opening`].
    ///
    /// ```
    /// # use onelock_core::driver::{Driver, opening};
    /// # use onelock_core::{Capabilities, MemoryBackend, MemoryStore, OptionSpec};
    /// const MINE: Driver = Driver::new("mine", &["mine", "mine+tls"], |_url, context| {
    ///     opening(async move { Ok(MemoryBackend::new(&MemoryStore::new(context.clock))) })
    /// });
    /// assert_eq!(MINE.schemes[0], "mine");
    /// ```
    pub const fn new(name: &'static str, schemes: &'static [&'static str], open: Open) -> Self {
        let capabilities = Capabilities::minimal();
        Self { name, schemes, example: "", about: "", capabilities, options: &[], open }
    }

    /// With an example URL.
    ///
    /// ```
    /// # use onelock_core::driver::{Driver, opening};
    /// # use onelock_core::{Capabilities, MemoryBackend, MemoryStore, OptionSpec};
    /// const MINE: Driver = Driver::new("mine", &["mine", "mine+tls"], |_url, context| {
    ///     opening(async move { Ok(MemoryBackend::new(&MemoryStore::new(context.clock))) })
    /// })
    /// .example("mine://host:7000");
    /// assert_eq!(MINE.example, "mine://host:7000");
    /// ```
    pub const fn example(mut self, example: &'static str) -> Self {
        self.example = example;
        self
    }

    /// With a line that says what it is.
    ///
    /// ```
    /// # use onelock_core::driver::{Driver, opening};
    /// # use onelock_core::{Capabilities, MemoryBackend, MemoryStore, OptionSpec};
    /// const MINE: Driver = Driver::new("mine", &["mine", "mine+tls"], |_url, context| {
    ///     opening(async move { Ok(MemoryBackend::new(&MemoryStore::new(context.clock))) })
    /// })
    /// .about("a store of my own");
    /// assert_eq!(MINE.about, "a store of my own");
    /// ```
    pub const fn about(mut self, about: &'static str) -> Self {
        self.about = about;
        self
    }

    /// With what it can do.
    ///
    /// ```
    /// # use onelock_core::driver::{Driver, opening};
    /// # use onelock_core::{Capabilities, MemoryBackend, MemoryStore, OptionSpec};
    /// const MINE: Driver = Driver::new("mine", &["mine", "mine+tls"], |_url, context| {
    ///     opening(async move { Ok(MemoryBackend::new(&MemoryStore::new(context.clock))) })
    /// })
    /// .capabilities(Capabilities::of_lines().push(false));
    /// assert!(!MINE.capabilities.push);
    /// ```
    pub const fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// With options of its own.
    ///
    /// ```
    /// # use onelock_core::driver::{Driver, opening};
    /// # use onelock_core::{Capabilities, MemoryBackend, MemoryStore, OptionSpec};
    /// const MINE: Driver = Driver::new("mine", &["mine", "mine+tls"], |_url, context| {
    ///     opening(async move { Ok(MemoryBackend::new(&MemoryStore::new(context.clock))) })
    /// })
    /// .options(&[]);
    /// assert!(MINE.options.is_empty());
    /// ```
    pub const fn options(mut self, options: &'static [OptionSpec]) -> Self {
        self.options = options;
        self
    }

    /// Opens a backend.
    ///
    /// # Errors
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL that cannot work, before any I/O; what connecting says.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> onelock_core::Result<()> {
    /// # use std::sync::Arc;
    /// # use onelock_core::BootClock;
    /// # use onelock_core::driver::Context;
    /// let driver = onelock::drivers()[0];
    /// let backend = driver.open("memory://".parse()?, Context::new(Arc::new(BootClock))).await?;
    /// assert_eq!(backend.info().scheme, "memory");
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(&self, url: StoreUrl, context: Context) -> Opening {
        (self.open)(url, context)
    }
}
