//! Where the file is and how patient to be, from a URL or a serde struct.

use std::path::PathBuf;
use std::time::Duration;

use onelock_core::toolkit::{checks::wrong_if, options};
use onelock_core::{Result, StoreUrl};

options! {
    /// Where the file is and how patient to be.
    #[derive(Eq)]
    pub struct SqliteConfig {
        /// The file; made when it does not exist, in a folder that does. A relative path is taken from the working
        /// directory at the time of opening.
        pub path: PathBuf = PathBuf::new(),
    }
    options {
        /// How long a call waits for other writers.
        ///
        /// After it, the call fails with [`Unavailable`](onelock_core::ErrorKind::Unavailable).
        busy_timeout: Duration = "5s",
        /// How often waiters look for other processes where the kernel does not tell of them.
        ///
        /// Waiters of one backend share one look. Where the kernel tells, it is only for what was not notified, a hundred times
        /// less often.
        poll: Duration = "10ms",
    }
}

impl SqliteConfig {
    /// The defaults for the file at `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// Reads a URL, whose common options have been taken out.
    ///
    /// # Errors
    /// [`InvalidConfig`](onelock_core::ErrorKind::InvalidConfig) when it names no file, has a user, a port or several hosts, or an option that is
    /// not known or out of range.
    pub fn from_url(mut url: StoreUrl) -> Result<Self> {
        url.check_options(&[Self::OPTIONS])?;
        let user = url.username.is_some() || url.password.is_some();
        wrong_if(user, "a SQLite URL has no user; write a file `a@b.db` as sqlite://./a%40b.db")?;
        let servers = url.hosts.len() > 1 || url.hosts.iter().any(|(_, port)| port.is_some());
        wrong_if(servers, "a SQLite URL has no hosts or ports; write `:` as %3A and `,` as %2C")?;
        // The part of a relative path before its first slash is where other stores have a host.
        let path: String =
            url.hosts.iter().map(|(first, _)| first.as_str()).chain([url.path.as_str()]).collect();
        wrong_if(path.ends_with('/'), "the SQLite store needs the path of a file, not of a folder")?;
        let config = Self::new(path).merge_url(&mut url)?;
        config.check().map(|()| config)
    }

    /// Checks the ranges, before any I/O.
    ///
    /// # Errors
    /// [`InvalidConfig`](onelock_core::ErrorKind::InvalidConfig).
    pub fn check(&self) -> Result<()> {
        let no_file = self.path.file_name().is_none();
        wrong_if(no_file, "the SQLite store needs the path of a file: sqlite:///folder/locks.db")?;
        wrong_if(self.busy_timeout > Duration::from_secs(60), "busy_timeout is at most 60s")?;
        let polls = Duration::from_millis(1)..=Duration::from_secs(1);
        wrong_if(!polls.contains(&self.poll), "poll is from 1ms to 1s")
    }
}

#[cfg(test)]
mod tests {
    use onelock_core::ErrorKind;

    use super::*;

    fn read(url: &str) -> Result<SqliteConfig> {
        SqliteConfig::from_url(url.parse()?)
    }

    #[test]
    fn urls_name_absolute_and_relative_files() {
        for (url, path) in [
            ("sqlite:///a/locks.db", "/a/locks.db"),
            ("sqlite:///a%20b/%E4%B8%AD.db", "/a b/中.db"),
            ("sqlite://locks.db", "locks.db"),
            ("sqlite://./data/locks.db", "./data/locks.db"),
            ("sqlite://data/locks.db", "data/locks.db"),
            ("sqlite://../locks.db", "../locks.db"),
            ("sqlite://./a%40b%20c.db", "./a@b c.db"),
        ] {
            assert_eq!(read(url).unwrap().path, PathBuf::from(path), "{url}");
        }
        let config = read("sqlite:///a/b?busy_timeout=100ms&poll=2ms").unwrap();
        assert_eq!(
            (config.busy_timeout, config.poll),
            (Duration::from_millis(100), Duration::from_millis(2))
        );
    }

    #[test]
    fn what_is_no_file_is_refused() {
        for url in [
            "sqlite://",
            "sqlite:///",
            "sqlite:///a/",
            "sqlite://u@h/a",
            "sqlite://a,b",
            "sqlite://h:1/a",
            "sqlite:///a/..",
            "sqlite://:memory:",
            "sqlite:///a?poll=0s",
            "sqlite:///a?poll=1h",
            "sqlite:///a?busy_timeout=2m",
            "sqlite:///a?pool=1ms",
        ] {
            assert_eq!(read(url).unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
        }
        // What an error advises works: what is written there is no host.
        let text = read("sqlite://a@b.db").unwrap_err().to_string();
        assert!(text.contains("sqlite://./a%40b.db"), "{text}");
        let text = read("sqlite:///a?pool=1ms").unwrap_err().to_string();
        assert!(text.contains("busy_timeout") && text.contains("poll"), "{text}");
    }

    #[test]
    fn a_config_survives_serde_and_refuses_the_unknown() {
        let config = SqliteConfig::new("/a/locks.db");
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<SqliteConfig>(&json).unwrap(), config);
        assert_eq!(serde_json::from_str::<SqliteConfig>(r#"{"path": "/a/locks.db"}"#).unwrap(), config);
        let error = serde_json::from_str::<SqliteConfig>(r#"{"path": "a", "pol": "1s"}"#).unwrap_err();
        assert!(error.to_string().contains("pol"), "{error}");
    }
}
