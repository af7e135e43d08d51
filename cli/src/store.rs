//! Which store, and the client of it.

use std::env;
use std::fs::DirBuilder;
use std::path::{Path, PathBuf};
use std::time::Duration;

use onelock::Locks;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::exit::Failure;

/// What stays as it is in the path of a URL.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// How long the end of a short command waits for the store to settle.
pub(crate) const CLOSE: Duration = Duration::from_secs(5);

/// The URL that the user named, or the default store's.
pub(crate) fn url(named: Option<String>) -> Result<String, Failure> {
    named.map_or_else(default_url, Ok)
}

/// Connects to the store that the user named, or to the default one.
pub(crate) async fn connect(named: Option<String>) -> Result<Locks, Failure> {
    Ok(onelock::connect(&url(named)?).await?)
}

/// Does `work` with that store. It is to hold nothing when it ends: nothing can be owed then that anybody waits for.
pub(crate) async fn with<T>(
    named: Option<String>,
    work: impl AsyncFnOnce(&Locks) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let locks = connect(named).await?;
    let done = work(&locks).await;
    let _ = locks.close(CLOSE).await;
    done
}

/// The SQLite file of this user on this host. Its folder is made if need be, for this user alone.
fn default_url() -> Result<String, Failure> {
    let folder = state_folder(env::var_os("XDG_STATE_HOME").map(PathBuf::from), env::home_dir())
        .ok_or_else(|| {
            Failure::Usage("there is no home folder for the default store; say --store URL".into())
        })?
        .join("onelock");
    let file = folder.join("locks.db");
    let url = url_of(&file)?;
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let made = builder.recursive(true).create(&folder);
    made.map_err(Failure::system(format!("cannot make {}", folder.display())))?;
    Ok(url)
}

/// A relative path in `XDG_STATE_HOME` is to be ignored, says its specification.
fn state_folder(xdg: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let home = home.filter(|home| home.is_absolute());
    xdg.filter(|xdg| xdg.is_absolute()).or_else(|| home.map(|home| home.join(".local/state")))
}

fn url_of(file: &Path) -> Result<String, Failure> {
    let text = file
        .to_str()
        .ok_or_else(|| Failure::Usage(format!("{} is not UTF-8; say --store sqlite:///…", file.display())))?;
    Ok(format!("sqlite://{}", utf8_percent_encode(text, PATH)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_folder_follows_the_specification() {
        let (xdg, home) = (Some(PathBuf::from("/x")), Some(PathBuf::from("/home/me")));
        assert_eq!(state_folder(xdg, home.clone()), Some("/x".into()));
        assert_eq!(state_folder(Some("x".into()), home.clone()), Some("/home/me/.local/state".into()));
        assert_eq!(state_folder(None, home), Some("/home/me/.local/state".into()));
        assert_eq!(state_folder(None, None), None);
    }

    #[test]
    fn odd_folders_make_sound_urls() {
        let url = url_of(Path::new("/a b/%?#/ü")).ok().unwrap();
        assert_eq!(url, "sqlite:///a%20b/%25%3F%23/%C3%BC");
    }
}
