//! The suite that every store passes, on this one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use async_trait::async_trait;
use folder_store::{CAPABILITIES, DRIVER};
use onelock::toolkit::Lines;
use onelock_conformance::Verdict;
use onelock_conformance::harness::file::{File, FileInspector};

/// How the suite looks at what is left, past the store.
struct State;

#[async_trait]
impl FileInspector for State {
    async fn residue(&self, folder: &Path) -> Verdict<Vec<String>> {
        let mut names = Vec::new();
        for file in states(folder)? {
            let lines: Lines = serde_json::from_str(&std::fs::read_to_string(file)?)?;
            names.extend(lines.names().map(ToString::to_string));
        }
        Ok(names)
    }

    /// Each file has one.
    async fn counters(&self, folder: &Path) -> Verdict<u64> {
        Ok(states(folder)?.len() as u64)
    }
}

fn states(folder: &Path) -> Verdict<Vec<PathBuf>> {
    let files = std::fs::read_dir(folder)?.map(|file| Ok(file?.path())).collect::<Verdict<Vec<_>>>()?;
    Ok(files.into_iter().filter(|file| file.extension().is_some_and(|kind| kind == "state")).collect())
}

fn main() -> ExitCode {
    onelock_conformance::run(File::new("folder", DRIVER, CAPABILITIES, State).in_folder())
}
