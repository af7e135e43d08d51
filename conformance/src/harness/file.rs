//! A store in a file or a folder, shared by the processes of one host.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use onelock_core::{Backend, Capabilities, Driver};
use tempfile::TempDir;

use super::{Harness, Store, open_by};
use crate::case::Need;
use crate::faults::{Gate, Link};
use crate::servers::data_folder;
use crate::verdict::{Context as _, Verdict};

/// How the suite looks into the file past the store.
#[async_trait]
pub trait FileInspector: Send + Sync + 'static {
    /// The entries in the file.
    async fn residue(&self, file: &Path) -> Verdict<Vec<String>>;

    /// The rows that stay for ever.
    async fn counters(&self, file: &Path) -> Verdict<u64>;
}

/// A store in a file: each case has a file of its own.
pub struct File {
    name: &'static str,
    driver: Driver,
    capabilities: Capabilities,
    look: Arc<dyn FileInspector>,
    is_folder: bool,
}

impl File {
    /// The store that `driver` opens from `scheme:///path`, with what it declares.
    #[must_use]
    pub fn new(
        name: &'static str,
        driver: Driver,
        capabilities: Capabilities,
        look: impl FileInspector,
    ) -> Self {
        Self { name, driver, capabilities, look: Arc::new(look), is_folder: false }
    }

    /// The same of a store in a folder, which is there and empty at first.
    #[must_use]
    pub fn in_folder(self) -> Self {
        Self { is_folder: true, ..self }
    }
}

#[async_trait]
impl Harness for File {
    fn name(&self) -> &'static str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn lacks(&self, need: Need) -> Option<String> {
        let why = match need {
            Need::Connections | Need::Restart | Need::Pause | Need::Leader => "there is no server",
            Need::Network | Need::Altered => "there is no network",
            Need::Password | Need::Tls => "the file's permissions are its access control",
            Need::Foreign => {
                "a file that is not ours is refused when it is opened; the store's own tests show it"
            }
            _ => return None,
        };
        Some(why.to_owned())
    }

    async fn start(&self) -> Verdict<Box<dyn Store>> {
        let folder = data_folder()?;
        let file = folder.path().join("locks.db");
        if self.is_folder {
            std::fs::create_dir(&file)?;
        }
        let look = Arc::clone(&self.look);
        Ok(Box::new(Fresh { driver: self.driver, file, look, link: Link::new(), _folder: folder }))
    }

    async fn open(&self, url: &str) -> onelock_core::Result<Arc<dyn Backend>> {
        open_by(&self.driver, url).await
    }
}

struct Fresh {
    driver: Driver,
    file: PathBuf,
    look: Arc<dyn FileInspector>,
    /// Counts what goes through the clients that are never cut.
    link: Arc<Link>,
    _folder: TempDir,
}

impl Fresh {
    fn url_of(&self, file: &Path) -> Verdict<String> {
        let scheme = self.driver.schemes.first().context("the driver has no scheme")?;
        Ok(format!("{scheme}://{}", file.display()))
    }
}

#[async_trait]
impl Store for Fresh {
    async fn connect(&self) -> Verdict<Arc<dyn Backend>> {
        self.connect_by(&self.link).await
    }

    fn url(&self) -> Verdict<String> {
        self.url_of(&self.file)
    }

    async fn requests(&self) -> Verdict<u64> {
        Ok(self.link.requests.get())
    }

    async fn connect_by(&self, link: &Arc<Link>) -> Verdict<Arc<dyn Backend>> {
        let backend = open_by(&self.driver, &self.url()?).await?;
        Ok(Arc::new(Gate::new(backend, link)))
    }

    async fn residue(&self) -> Verdict<Vec<String>> {
        self.look.residue(&self.file).await
    }

    async fn counters(&self) -> Verdict<u64> {
        self.look.counters(&self.file).await
    }

    fn unreachable_url(&self) -> Verdict<String> {
        self.url_of(&self.file.with_file_name("no-such-folder").join("locks.db"))
    }
}
